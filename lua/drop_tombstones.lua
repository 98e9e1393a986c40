#!lua flags=allow-oom
-- Forget deleted memories whose older events can no longer arrive.
--
-- Guarantee: all or nothing. A memory is dropped only if it is a tombstone whose version lies before the floor. The
--   highest version ever dropped stays in `stats`: whatever is as old and finds no memory comes from a worker that
--   was away for long, and is refused.
--
-- KEYS[1..2]   stats:{ns}, tombstones:{ns}
-- KEYS[3..]    memory:{ns}:<id>
-- ARGV[1]      floor: entry id before which every event has been processed
-- ARGV[2..]    id, one per memory key
--
-- Returns the number of tombstones dropped.

local stats, tombstones, floor = KEYS[1], KEYS[2], ARGV[1]

local function padded(id)
  local ms, seq = string.match(id, '^(%d+)%-(%d+)$')
  return string.rep('0', 20 - #ms) .. ms .. string.rep('0', 20 - #seq) .. seq
end

if #ARGV ~= #KEYS - 1 then
  return redis.error_reply('ERR keys or arguments are missing or too many')
end
redis.call('ZCARD', tombstones)
local known = redis.call('HMGET', stats, 'epoch', 'forgotten')
local first_kept, forgotten = padded(floor), known[2]
if forgotten and not string.match(forgotten, '^%d+%-%d+$') then
  return redis.error_reply('CORRUPT the newest forgotten version of the namespace is no entry id; run: jiyi check')
end
local stale, old = {}, {}
for i = 3, #KEYS do
  local stored = redis.call('HMGET', KEYS[i], 'entry', 'deleted_at')
  if not stored[2] then
    stale[#stale + 1] = ARGV[i - 1]
  elseif padded(stored[1]) < first_kept then
    stale[#stale + 1] = ARGV[i - 1]
    old[#old + 1] = KEYS[i]
    if not forgotten or padded(forgotten) < padded(stored[1]) then
      forgotten = stored[1]
    end
  end
end

if known[1] and forgotten ~= known[2] then
  redis.call('HSET', stats, 'forgotten', forgotten)
end
for _, id in ipairs(stale) do
  redis.call('ZREM', tombstones, id)
end
local dropped = 0
for _, key in ipairs(old) do
  dropped = dropped + redis.call('DEL', key)
end
return dropped
