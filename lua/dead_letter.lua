#!lua
-- File an event that cannot be applied: keep its fields in the dead-letter stream and mark its memory as failed.
--
-- Guarantee: all or nothing, and one letter a version: filing it again while it is filed changes nothing. A letter
--   that is under way again (`begin_replay`) and has failed once more replaces itself. A dead letter older than the
--   marked one is filed, but leaves the mark. An event that its memory holds is not filed: it was applied, and only its
--   acknowledgement was lost.
--
-- KEYS[1..3]   dead:{ns}, failed:{ns}, letters:{ns}
-- KEYS[4]      memory:{ns}:<id>, where the event names one
-- ARGV[1]      field of `failed`: the memory id, or the version behind a zero byte where there is no id
-- ARGV[2..6]   version, reason code, reason, now (epoch ms), number of deliveries
-- ARGV[7..]    the entry's own fields: name, value, ...
--
-- Returns 1 when filed, 0 when it was filed before, 2 when it was applied before.

local dead, failed, letters, memory = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local field, version, code, reason, now, deliveries = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]

local function padded(id)
  local ms, seq = string.match(id, '^(%d+)%-(%d+)')
  return string.rep('0', 20 - #ms) .. ms .. string.rep('0', 20 - #seq) .. seq
end

if #ARGV < 6 or #ARGV % 2 ~= 0 then
  return redis.error_reply('ERR arguments are missing')
end
if not string.match(version, '^%d+%-%d+$') then
  return redis.error_reply('ERR the version is no entry id')
end
-- A memory whose key somebody else has taken has applied nothing, and that may be why the event is filed.
if memory and redis.call('TYPE', memory).ok == 'hash' and redis.call('HGET', memory, 'entry') == version then
  return 2
end
redis.call('XLEN', dead)
local filed = redis.call('HGET', letters, version)
local under_way = filed and string.match(filed, '^replayed (%S+)$')
if filed and not under_way then
  return 0
end
local marked = redis.call('HGET', failed, field)
local marks = not marked or padded(string.match(marked, '^%S+')) <= padded(version)

-- The entry's own fields travel as one value: their names could otherwise be taken for ours.
local fields = {}
for i = 7, #ARGV do
  fields[#fields + 1] = ARGV[i]
end
if under_way then
  redis.call('XDEL', dead, under_way)
end
local letter = redis.call('XADD', dead, '*', 'entry', version, 'code', code, 'reason', reason, 'dead_at', now,
  'deliveries', deliveries, 'fields', cmsgpack.pack(fields))
redis.call('HSET', letters, version, letter)
if marks then
  redis.call('HSET', failed, field, version .. ' ' .. code .. ' ' .. reason)
end
return 1
