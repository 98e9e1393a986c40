#!lua
-- Note up to which document number the long lists of a namespace have been sealed.
--
-- Guarantee: nothing is written in another epoch, so a namespace that was removed does not come back by it.
--
-- KEYS[1]      stats:{ns}
-- ARGV[1..2]   epoch, document number
--
-- Returns 1 when it was noted, 0 in another epoch.

local stats = KEYS[1]
local epoch, number = ARGV[1], ARGV[2]

if redis.call('HGET', stats, 'epoch') ~= epoch then
  return 0
end
redis.call('HSET', stats, 'sealed', number)
return 1
