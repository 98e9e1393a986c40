#!lua
-- File an event that cannot be applied: keep its fields in the dead-letter stream and mark its memory as failed.
--
-- Guarantee: both or neither. Filing the same entry again while it is the memory's last dead letter changes
--   nothing. A dead letter older than the marked one is filed, but leaves the mark.
--
-- KEYS[1..2]   dead:{ns}, failed:{ns}
-- ARGV[1]      field of `failed`: the memory id, or the entry id behind a zero byte where there is no id
-- ARGV[2..6]   entry id, reason code, reason, now (epoch ms), number of deliveries
-- ARGV[7..]    the entry's own fields: name, value, ...
--
-- Returns 1 when filed, 0 when it was filed before.

local dead, failed = KEYS[1], KEYS[2]
local field, entry, code, reason, now, deliveries = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]

local function padded(id)
  local ms, seq = string.match(id, '^(%d+)%-(%d+)')
  return string.rep('0', 20 - #ms) .. ms .. string.rep('0', 20 - #seq) .. seq
end

if #ARGV < 6 or #ARGV % 2 ~= 0 then
  return redis.error_reply('ERR arguments are missing')
end
redis.call('XLEN', dead)
local marked = redis.call('HGET', failed, field)
local marked_entry = marked and string.match(marked, '^%S+')
if marked_entry == entry then
  return 0
end
local marks = not marked or padded(marked_entry) < padded(entry)

-- The entry's own fields travel as one value: their names could otherwise be taken for ours.
local fields = {}
for i = 7, #ARGV do
  fields[#fields + 1] = ARGV[i]
end
redis.call('XADD', dead, '*', 'entry', entry, 'code', code, 'reason', reason, 'dead_at', now,
  'deliveries', deliveries, 'fields', cmsgpack.pack(fields))
if marks then
  redis.call('HSET', failed, field, entry .. ' ' .. code .. ' ' .. reason)
end
return 1
