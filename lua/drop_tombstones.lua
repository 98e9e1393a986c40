#!lua flags=allow-oom
-- Forget deleted memories whose older events can no longer arrive.
--
-- Guarantee: a memory is dropped only if it is a tombstone whose version lies before the floor.
--
-- KEYS[1]      tombstones:{ns}
-- KEYS[2..]    memory:{ns}:<id>
-- ARGV[1]      floor: entry id before which every event has been processed
-- ARGV[2..]    id, one per memory key
--
-- Returns the number of tombstones dropped.

local tombstones, floor = KEYS[1], ARGV[1]

local function padded(id)
  local ms, seq = string.match(id, '^(%d+)%-(%d+)$')
  return string.rep('0', 20 - #ms) .. ms .. string.rep('0', 20 - #seq) .. seq
end

if #ARGV ~= #KEYS then
  return redis.error_reply('ERR keys or arguments are missing or too many')
end
redis.call('ZCARD', tombstones)
local first_kept = padded(floor)
local stale, old = {}, {}
for i = 2, #KEYS do
  local stored = redis.call('HMGET', KEYS[i], 'entry', 'deleted_at')
  if not stored[2] then
    stale[#stale + 1] = ARGV[i]
  elseif padded(stored[1]) < first_kept then
    stale[#stale + 1] = ARGV[i]
    old[#old + 1] = KEYS[i]
  end
end

for _, id in ipairs(stale) do
  redis.call('ZREM', tombstones, id)
end
local dropped = 0
for _, key in ipairs(old) do
  dropped = dropped + redis.call('DEL', key)
end
return dropped
