#!lua flags=no-writes
-- Translate document numbers into memory ids.
--
-- Guarantee: a number that is answered with an id always meant and will always mean that id in this epoch;
--   a number whose document has died, and every number of another epoch, is answered with nil.
--
-- KEYS[1]      stats:{ns}
-- KEYS[2..]    ids:{ns}:<block>, one per number
-- ARGV[1]      epoch of the numbers
-- ARGV[2..]    document number, one per block
--
-- Returns {id or nil, ...} in the order of the numbers.

local same = redis.call('HGET', KEYS[1], 'epoch') == ARGV[1]
local ids = {}
for i = 2, #KEYS do
  ids[i - 1] = same and redis.call('HGET', KEYS[i], ARGV[i])
end
return ids
