#!lua flags=no-writes
-- Read what a query needs: counters, the journal's and each term's bytes that the reader does not have yet.
--
-- Guarantee: one consistent snapshot of one instant, if no part was cut at the byte limit. Bytes that were
--   read earlier stay valid while the epoch and the generation stand.
--
-- KEYS[1..2]   stats:{ns}, journal:{ns}
-- KEYS[3..]    terms:{ns}:<bucket>, index:{ns}:<term>, one pair per term
-- ARGV[1]      most bytes of one key in this answer
-- ARGV[2..3]   generation ("": none) and number of the journal's bytes that the reader has
-- ARGV[4..]    term, generation ("": none), number of bytes that the reader has, three per term
--
-- Returns {epoch, analyzer, docs, tokens, next_doc, journal, term, ...}; a long term is {df, generation, from,
--   total, bytes [from, from + #bytes) of the key}, and so is the journal, with "<changes> <fence_moves>" of `stats`
--   in the place of df; a short term is {df, "", 0, #postings, postings}, an absent one {0, "", 0, 0, ""}.
--   Unknown namespace: {"", ...}.

local stats, journal = KEYS[1], KEYS[2]
local limit = tonumber(ARGV[1])
local GENERATION_BYTES = 4

local function fresh_bytes(first, key, generation, have)
  local total = redis.call('STRLEN', key)
  if total == 0 then
    return { first, '', 0, 0, '' }
  end
  local current = redis.call('GETRANGE', key, 0, GENERATION_BYTES - 1)
  local from = GENERATION_BYTES
  if current == generation and have >= from and have <= total then
    from = have
  end
  if from == total then
    return { first, current, from, total, '' }
  end
  return { first, current, from, total, redis.call('GETRANGE', key, from, math.min(total, from + limit) - 1) }
end

local function term_bytes(i)
  local value = redis.call('HGET', KEYS[2 * i + 1], ARGV[3 * i + 1])
  if not value then
    return { 0, '', 0, 0, '' }
  end
  local df = struct.unpack('<I4', value)
  if #value > 4 then
    return { df, '', 0, #value - 4, string.sub(value, 5) }
  end
  return fresh_bytes(df, KEYS[2 * i + 2], ARGV[3 * i + 2], tonumber(ARGV[3 * i + 3]))
end

local counters = redis.call('HMGET', stats, 'epoch', 'analyzer', 'docs', 'tokens', 'next_doc', 'changes', 'fence_moves')
if not counters[1] then
  return { '', '', 0, 0, 0, { '', '', 0, 0, '' } }
end
local state = (counters[6] or '0') .. ' ' .. (counters[7] or '0')
local answer = { counters[1], counters[2], tonumber(counters[3]), tonumber(counters[4]), tonumber(counters[5]),
  fresh_bytes(state, journal, ARGV[2], tonumber(ARGV[3])) }
for i = 1, (#KEYS - 2) / 2 do
  answer[#answer + 1] = term_bytes(i)
end
return answer
