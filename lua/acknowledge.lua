#!lua flags=allow-oom
-- Acknowledge processed entries and count them.
--
-- Guarantee: an entry is counted once, by the call that takes it off the pending list. `sweep_stream` finds by this
--   count what vanished without being processed. All or nothing, up to CHUNK entries.
--
-- KEYS[1..2]   the stream, processed:{stream}
-- ARGV[1]      group
-- ARGV[2..]    entry ids
--
-- Returns the number of entries acknowledged now.

local stream, processed, group = KEYS[1], KEYS[2], ARGV[1]
local CHUNK = 1000

local counted = redis.call('HGET', processed, group .. ':acknowledged')
if counted and not (string.match(counted, '^%d+$') and #counted <= 15) then
  return redis.error_reply('CORRUPT the account of the group is no number; delete it (HDEL), and it begins anew')
end

local acknowledged = 0
for from = 2, #ARGV, CHUNK do
  local count = redis.call('XACK', stream, group, unpack(ARGV, from, math.min(from + CHUNK - 1, #ARGV)))
  if count > 0 then
    redis.call('HINCRBY', processed, group .. ':acknowledged', count)
  end
  acknowledged = acknowledged + count
end
return acknowledged
