#!lua
-- Set the name of one dead event in `letters` by the dead letters that there are.
--
-- Guarantee: only while the name is as the caller found it. It is set only to a letter that exists, and removed only
--   while the letter in it does not exist, or is none.
--
-- KEYS[1..2]   dead:{ns}, letters:{ns}
-- ARGV[1..3]   version, its name as it was read ("": none), the letter that shall be named ("": none)
-- ARGV[4]      the letter in the name as it was read ("": no entry id)
--
-- Returns 1 when something was changed, else 0.

local dead, letters, version, name, letter, named = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if #ARGV ~= 4 then
  return redis.error_reply('ERR arguments are missing')
end
local decides = letter ~= '' and letter or named
local kept = decides ~= '' and #redis.call('XRANGE', dead, decides, decides) > 0
if (redis.call('HGET', letters, version) or '') ~= name or kept ~= (letter ~= '') then
  return 0
end

if letter == '' then
  return redis.call('HDEL', letters, version)
end
redis.call('HSET', letters, version, letter)
return 1
