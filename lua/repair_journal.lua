#!lua
-- Put a journal that was written anew in the place of the old one, and set the counters right.
--
-- Guarantee: all or nothing. What was appended to the old journal since the caller read it is appended to the new
--   one; the counters are moved by the difference that the caller found at the instant of that reading, so that
--   whatever was counted since stays counted. The new journal has a generation of its own: readers read it whole.
--
-- KEYS[1..3]   stats:{ns}, journal:{ns}, rebuild:{ns}:<token>
-- ARGV[1..3]   epoch, generation and bytes of the old journal as they were read ("" and 0: there was none)
-- ARGV[4..5]   what `docs` and `tokens` were short of at that instant
-- ARGV[6]      bytes of the new journal, 4 for its generation included
--
-- Returns 0 OK, 1 MOVED (another epoch, another journal, or the new one is not there: begin anew),
--   2 BEHIND (too much was appended: read on).

local stats, journal, rebuild = KEYS[1], KEYS[2], KEYS[3]
local epoch, generation, have = ARGV[1], ARGV[2], tonumber(ARGV[3])
local docs_missing, tokens_missing, bytes = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local OK, MOVED, BEHIND = 0, 1, 2
local GENERATION_BYTES, MAX_DOC, MOST_BYTES = 4, 4294967294, 65536

local known = redis.call('HMGET', stats, 'epoch', 'docs', 'tokens', 'next_doc')
local docs, tokens, next_doc = tonumber(known[2] or ''), tonumber(known[3] or ''), tonumber(known[4] or '')
if known[1] ~= epoch or redis.call('STRLEN', rebuild) ~= bytes then
  return MOVED
end
local total = redis.call('STRLEN', journal)
local current = redis.call('GETRANGE', journal, 0, GENERATION_BYTES - 1)
if total < have or (have > 0 and current ~= generation) then
  return MOVED
end
local from = math.max(have, GENERATION_BYTES)
if total - from > MOST_BYTES then
  return BEHIND
end
local since = redis.call('GETRANGE', journal, from, -1)
if not docs or not tokens or docs + docs_missing < 0 or tokens + tokens_missing < 0 then
  return redis.error_reply('CORRUPT the counters of the namespace are too low or no numbers; run: jiyi check')
end
if not next_doc or next_doc >= MAX_DOC then
  return redis.error_reply('FULL the namespace has used up its document numbers')
end

-- The first write, which fails where `changes` is no number. Readers see by it that something is not as they know it.
redis.call('HINCRBY', stats, 'changes', 1)

-- A document number that nobody gets: so no other list and no other journal of this epoch has it as generation.
local number = redis.call('HINCRBY', stats, 'next_doc', 1) - 1
redis.call('SETRANGE', rebuild, 0, struct.pack('<I4', number))
redis.call('APPEND', rebuild, since)
redis.call('RENAME', rebuild, journal)
redis.call('PERSIST', journal)
redis.call('HINCRBY', stats, 'docs', docs_missing)
redis.call('HINCRBY', stats, 'tokens', tokens_missing)
return OK
