#!lua flags=allow-oom
-- Remove a consumer from its group if it holds nothing.
--
-- Guarantee: a consumer with pending entries is never removed, so no entry is lost with it.
--
-- KEYS[1]      the stream
-- ARGV[1..2]   group, consumer
-- ARGV[3]      least idle time in milliseconds
--
-- Returns 1 when removed, 0 when it was kept or is not there.

local stream, group, name, least_idle = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])

for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', stream, group)) do
  local info = {}
  for i = 1, #consumer, 2 do
    info[consumer[i]] = consumer[i + 1]
  end
  if info.name == name then
    if info.pending > 0 or info.idle < least_idle then
      return 0
    end
    redis.call('XGROUP', 'DELCONSUMER', stream, group, name)
    return 1
  end
end
return 0
