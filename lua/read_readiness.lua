#!lua flags=no-writes
-- Read what is known of some memories: the applied version, a tombstone, the last dead letter.
--
-- Guarantee: all of it at one instant.
--
-- KEYS[1]      failed:{ns}
-- KEYS[2..]    memory:{ns}:<id>
-- ARGV[1..]    id, one per memory key
--
-- Returns per memory {entry, indexed_at, deleted_at, expires_at, dead letter}, each a string or nil.

local answers = {}
for i, id in ipairs(ARGV) do
  local known = redis.call('HMGET', KEYS[i + 1], 'entry', 'indexed_at', 'deleted_at', 'expires_at')
  known[5] = redis.call('HGET', KEYS[1], id)
  answers[i] = known
end
return answers
