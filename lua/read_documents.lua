#!lua flags=no-writes
-- Read the same fields of several memories.
--
-- Guarantee: all memories as they are at one instant.
--
-- KEYS[1..]    memory:{ns}:<id>
-- ARGV[1..]    names of hash fields
--
-- Returns per key {value or nil, ...} in the order of the names.

local documents = {}
for i, key in ipairs(KEYS) do
  documents[i] = redis.call('HMGET', key, unpack(ARGV))
end
return documents
