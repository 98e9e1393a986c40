#!lua flags=no-writes
-- Translate document numbers into memory ids.
--
-- Guarantee: a number that is answered with an id always meant and will always mean that id in this epoch;
--   a number whose document has died is answered with nil.
--
-- KEYS[1..]    ids:{ns}:<block>, one per number
-- ARGV[1..]    document number, one per key
--
-- Returns {id or nil, ...} in the order of the numbers.

local ids = {}
for i, key in ipairs(KEYS) do
  ids[i] = redis.call('HGET', key, ARGV[i])
end
return ids
