#!lua flags=no-writes
-- Read the same fields of several memories.
--
-- Guarantee: all memories as they are at one instant. In another epoch than the one asked for no memory is the
--   caller's: all values are nil.
--
-- KEYS[1]      stats:{ns}
-- KEYS[2..]    memory:{ns}:<id>
-- ARGV[1]      epoch ("": any)
-- ARGV[2..]    names of hash fields
--
-- Returns per memory {value or nil, ...} in the order of the names.

local stats, epoch = KEYS[1], ARGV[1]
local names = {}
for i = 2, #ARGV do
  names[i - 1] = ARGV[i]
end

if epoch ~= '' and redis.call('HGET', stats, 'epoch') ~= epoch then
  local nothing, documents = {}, {}
  for i = 1, #names do
    nothing[i] = false
  end
  for i = 2, #KEYS do
    documents[i - 1] = nothing
  end
  return documents
end
local documents = {}
for i = 2, #KEYS do
  documents[i - 1] = redis.call('HMGET', KEYS[i], unpack(names))
end
return documents
