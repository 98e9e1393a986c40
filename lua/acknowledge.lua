#!lua flags=allow-oom
-- Acknowledge processed entries and count them.
--
-- Guarantee: an entry is counted once, by the call that takes it off the pending list. `sweep_stream` finds by this
--   count what vanished without being processed.
--
-- KEYS[1..2]   the stream, processed:{stream}
-- ARGV[1]      group
-- ARGV[2..]    entry ids
--
-- Returns the number of entries acknowledged now.

local stream, processed, group = KEYS[1], KEYS[2], ARGV[1]

redis.call('HLEN', processed)
local acknowledged = 0
for i = 2, #ARGV do
  acknowledged = acknowledged + redis.call('XACK', stream, group, ARGV[i])
end
if acknowledged > 0 then
  redis.call('HINCRBY', processed, group .. ':acknowledged', acknowledged)
end
return acknowledged
