#!lua
-- Switch a namespace to another analyzer and mark how far its documents have to be analysed again.
--
-- Guarantee: from here on only events analysed the new way are applied. Calling it again with the same
--   analyzer resumes: it answers the marks that are there.
--
-- KEYS[1]      stats:{ns}
-- ARGV[1]      analyzer fingerprint
-- ARGV[2]      "1": start over even if the analyzer is the same and nothing is under way
--
-- Returns {cursor, end}: documents with numbers in [cursor, end) remain; {0, 0} when nothing is to be done.

local stats, analyzer, force = KEYS[1], ARGV[1], ARGV[2] == '1'

local known = redis.call('HMGET', stats, 'epoch', 'analyzer', 'next_doc', 'reindex_cursor', 'reindex_end')
if not known[1] then
  return { 0, 0 }
end
if known[2] == analyzer and known[5] then
  return { tonumber(known[4]), tonumber(known[5]) }
end
if known[2] == analyzer and not force then
  return { 0, 0 }
end
local next_doc = tonumber(known[3] or '')
if not next_doc then
  return redis.error_reply('CORRUPT the next document number of the namespace is lost; run: jiyi check')
end
redis.call('HSET', stats, 'analyzer', analyzer, 'reindex_cursor', 0, 'reindex_end', next_doc)
return { 0, next_doc }
