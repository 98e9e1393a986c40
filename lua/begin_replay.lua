#!lua flags=allow-oom
-- Note that a dead letter's event is about to be appended to the stream again.
--
-- Guarantee: from here until the event is processed, its version stays in `letters`, so that no tombstone that
--   outranks it is forgotten.
--
-- KEYS[1..2]   dead:{ns}, letters:{ns}
-- ARGV[1]      id of the letter in the dead-letter stream
-- ARGV[2]      version of the dead event
--
-- Returns 1, or 0 when there is no such letter.

local dead, letters, letter, version = KEYS[1], KEYS[2], ARGV[1], ARGV[2]

redis.call('HLEN', letters)
if #redis.call('XRANGE', dead, letter, letter) == 0 then
  return 0
end
redis.call('HSET', letters, version, 'replayed ' .. letter)
return 1
