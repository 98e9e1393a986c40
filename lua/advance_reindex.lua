#!lua
-- Record how far a re-analysis has come, and end it when nothing remains.
--
-- Guarantee: touches only the marks of this very run, moves them only forward, and removes both or neither.
--
-- KEYS[1]      stats:{ns}
-- ARGV[1]      analyzer fingerprint of the run
-- ARGV[2]      end of the run, as `begin_reindex` answered it
-- ARGV[3]      documents with numbers below this one are done
--
-- Returns 1, or 0 when the run is over: ended by another process, or taken over with another analyzer.

local stats, analyzer, last, cursor = KEYS[1], ARGV[1], ARGV[2], ARGV[3]

local known = redis.call('HMGET', stats, 'analyzer', 'reindex_cursor', 'reindex_end')
if known[1] ~= analyzer or known[3] ~= last then
  return 0
end
if tonumber(cursor) >= tonumber(last) then
  redis.call('HDEL', stats, 'reindex_cursor', 'reindex_end')
elseif tonumber(cursor) > tonumber(known[2] or '0') then
  redis.call('HSET', stats, 'reindex_cursor', cursor)
end
return 1
