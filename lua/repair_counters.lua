#!lua
-- Make the counters of a namespace and the form of its journal usable, so that everything else can be mended.
--
-- Guarantee: sound values stay as they are. What changes anything gives the namespace a new epoch,
--   "<old>~<revision>" where there is an old one: nothing that was prepared or cached before counts any longer.
--   Counters that are no numbers begin at 0, and a journal that is no string or too short for a generation is gone:
--   `repair_journal` sets `docs`, `tokens` and the journal right. A `forgotten` that is no entry id is gone for good:
--   what it said is known to nobody, and the next tombstone that is dropped says it anew.
--
-- KEYS[1..2]   stats:{ns}, journal:{ns}
-- ARGV[1..3]   revision, analyzer fingerprint, least `next_doc`
--
-- Returns 1 when something was mended, 0 when all was sound, -1 when the namespace has another analyzer.

local stats, journal = KEYS[1], KEYS[2]
local revision, analyzer, floor = ARGV[1], ARGV[2], tonumber(ARGV[3])
local GENERATION_BYTES, MAX_DOC = 4, 4294967294

local function whole(value)
  return value and #value <= 15 and (value == '0' or string.match(value, '^[1-9]%d*$')) and tonumber(value)
end

if #ARGV ~= 3 or not floor or floor > MAX_DOC then
  return redis.error_reply('ERR arguments are missing or out of range')
end
local stats_type = redis.call('TYPE', stats).ok
local known = {}
if stats_type == 'hash' then
  known = redis.call('HMGET', stats, 'epoch', 'analyzer', 'docs', 'tokens', 'next_doc', 'changes', 'fence_moves',
    'forgotten')
end
if known[2] and known[2] ~= '' and known[2] ~= analyzer then
  return -1
end
local journal_type = redis.call('TYPE', journal).ok
local lost = journal_type ~= 'string' and journal_type ~= 'none'
if journal_type == 'string' then
  lost = redis.call('STRLEN', journal) < GENERATION_BYTES
end
local docs, tokens, next_doc = whole(known[3]), whole(known[4]), whole(known[5])
local counted = whole(known[6] or '0') and whole(known[7] or '0')
local numbered = next_doc and next_doc >= floor and next_doc <= MAX_DOC
local named = known[1] and known[1] ~= '' and known[2] and known[2] ~= ''
local garbled = known[8] and not string.match(known[8], '^%d+%-%d+$')
if named and docs and tokens and counted and numbered and not lost and not garbled then
  return 0
end

local old = string.match(known[1] or '', '^[^~]+')
local epoch = old and old .. '~' .. revision or revision
if stats_type ~= 'hash' then
  redis.call('DEL', stats)
end
if lost then
  redis.call('DEL', journal)
end
if garbled then
  redis.call('HDEL', stats, 'forgotten')
end
redis.call('HSET', stats, 'epoch', epoch, 'analyzer', analyzer, 'docs', docs and known[3] or '0',
  'tokens', tokens and known[4] or '0', 'next_doc', numbered and known[5] or ARGV[3])
if not counted then
  redis.call('HDEL', stats, 'changes', 'fence_moves')
end
return 1
