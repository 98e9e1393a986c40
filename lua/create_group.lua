#!lua flags=allow-oom
-- Create the consumer group, and the stream, at the very beginning, and start its account.
--
-- Guarantee: both or neither; a group that exists is left alone. Never at `$`: that would skip what was accepted
--   before the first worker came. On a full server too: without workers nobody would apply the deletes that free it.
--
-- KEYS[1..2]   the stream, processed:{stream}
-- ARGV[1]      group
--
-- Returns {0} when the group exists; {1} when it is new; {2, delivered} when it is made again: it has existed, and
--   somebody has removed it or the whole stream. `delivered` is the last entry that it is known to have read.

local stream, processed, group = KEYS[1], KEYS[2], ARGV[1]

local known = redis.call('HMGET', processed, group .. ':before', group .. ':delivered')
local before = 0 -- entries that are gone already
if redis.call('EXISTS', stream) == 1 then
  for _, flat in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    if flat[2] == group then
      return { 0 }
    end
  end
  local info, about = redis.call('XINFO', 'STREAM', stream), {}
  for i = 1, #info, 2 do
    about[info[i]] = info[i + 1]
  end
  before = about['entries-added'] - about['length']
end

redis.call('XGROUP', 'CREATE', stream, group, '0', 'MKSTREAM')
redis.call('HSET', processed, group .. ':acknowledged', 0, group .. ':lost', 0, group .. ':before', before,
  group .. ':delivered', '0-0')
return known[1] and { 2, known[2] or '0-0' } or { 1 }
