#!lua
-- Take back the mark of a dead letter that is neither kept nor on its way again.
--
-- Guarantee: only while the mark is as the caller found it and its letter does not exist. Its version leaves `letters`
--   with it.
--
-- KEYS[1..3]   dead:{ns}, failed:{ns}, letters:{ns}
-- ARGV[1..2]   field of `failed`, the mark as it was read
--
-- Returns 1 when the mark was removed, else 0.

local dead, failed, letters, field, mark = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2]

if redis.call('HGET', failed, field) ~= mark then
  return 0
end
local version = string.match(mark, '^%S*')
local filed = redis.call('HGET', letters, version)
local letter = filed and string.match(filed, '%d+%-%d+$')
if letter and #redis.call('XRANGE', dead, letter, letter) > 0 then
  return 0
end

redis.call('HDEL', failed, field)
redis.call('HDEL', letters, version)
return 1
