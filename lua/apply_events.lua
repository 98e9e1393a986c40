#!lua
-- Apply a batch of prepared events of one namespace: documents, postings, df, journal, ids, counters, fences.
--
-- Guarantee: all or nothing. Everything is read and checked first (epoch, analyzer, fences, types, counters,
--   permissions); any answer but OK, and any error, comes before the first write. Applying the same batch again answers
--   CONFLICT, since its fences have moved.
--
-- KEYS[1..6]   stats:{ns}, journal:{ns}, tombstones:{ns}, expiries:{ns}, failed:{ns}, reservations:{ns}
-- KEYS[7..]    memory:{ns}:<id> per event; then ids:{ns}:<block> per block; then terms:{ns}:<bucket> per
--              bucket; then index:{ns}:<term> per term, in the order of the buckets' terms
-- ARGV[1..10]  epoch, analyzer, now (epoch ms), number of events, of id blocks, of buckets, docs delta,
--              tokens delta, journal records, length of the prefix `index:{ns}:` in bytes
-- ARGV[11]     generation for postings that leave their bucket now (u32, 4 bytes): unique in this epoch
-- ARGV[12..13] token under which `prepare_events` has reserved the batch's numbers ("": it needs none); "1": this is
--              the reservation's last call
-- then per event:  op (w write, d delete, f move the fence only), id, the fence that prepare_events found
--              ("<entry> <doc>", each empty where there is none), version, milliseconds of the version,
--              expires_at ("": never), number of hash fields and values, and these
-- then per id block: number of births, doc, id, ...; number of deaths, doc, ...
-- then per bucket: number of plain terms, of mixed terms; per plain term its new postings; per mixed term
--              its new postings ("" for none) and the numbers of its documents that die (u32 each)
--
-- Returns 0 OK, 1 CONFLICT (a fence has moved: prepare again), 2 EPOCH_CHANGED (the namespace was wiped or
--   re-created: prepare again), 3 ANALYZER_CHANGED, 4 RESERVATION_LOST (the server has lost what it had promised:
--   prepare again).

local stats, journal, tombstones, expiries, failed = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local reservations = KEYS[6]
local OK, CONFLICT, EPOCH_CHANGED, ANALYZER_CHANGED, RESERVATION_LOST = 0, 1, 2, 3, 4
local INLINE_BYTES, GENERATION_BYTES, CHUNK = 60, 4, 1000
local epoch, analyzer, now = ARGV[1], ARGV[2], ARGV[3]
local event_count, block_count, bucket_count = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local docs_delta, tokens_delta, journal_records = tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9]
local term_from, generation = tonumber(ARGV[10]) + 1, ARGV[11]
local token, releases = ARGV[12], ARGV[13] == '1'
local first_memory = 7
local first_block = first_memory + event_count
local first_bucket = first_block + block_count
local first_term = first_bucket + bucket_count
local at = 14 -- next unread argument

local function take()
  local value = ARGV[at]
  at = at + 1
  return value
end

local function take_list(count)
  local list = {}
  for i = 1, count do
    list[i] = ARGV[at + i - 1]
  end
  at = at + count
  return list
end

local function padded(entry)
  local ms, seq = string.match(entry, '^(%d+)%-(%d+)')
  return string.rep('0', 20 - #ms) .. ms .. string.rep('0', 20 - #seq) .. seq
end

-- A counter as HINCRBY takes it, exact in a double.
local function whole(value)
  return value and #value <= 15 and (value == '0' or string.match(value, '^[1-9]%d*$')) and tonumber(value)
end

-- Checks. A command on a key of the wrong type raises here, before anything is written.

local counters = redis.call('HMGET', stats, 'epoch', 'analyzer', 'docs', 'tokens', 'forgotten', 'changes',
  'fence_moves')
if counters[1] ~= epoch then
  return EPOCH_CHANGED
end
if counters[2] ~= analyzer then
  return ANALYZER_CHANGED
end
if token ~= '' and not redis.call('ZSCORE', reservations, token) then
  return RESERVATION_LOST
end
local journal_bytes = redis.call('STRLEN', journal)
local has_tombstones = redis.call('ZCARD', tombstones) > 0
local has_expiries = redis.call('ZCARD', expiries) > 0
local has_failed = redis.call('HLEN', failed) > 0
local forgotten = counters[5] and padded(counters[5])

local events, moves_fences = {}, false
for i = 1, event_count do
  local event = { op = take(), id = take(), expected = take(), version = take(), ms = take(), expires_at = take() }
  event.fields = take_list(tonumber(take()))
  event.key = KEYS[first_memory + i - 1]
  moves_fences = moves_fences or event.op == 'f'
  local version = padded(event.version)
  -- The entry alone would not do: applying a version again (re-analysis, expiry) keeps it and changes the document.
  local fence = redis.call('HMGET', event.key, 'entry', 'doc')
  if (fence[1] or '') .. ' ' .. (fence[2] or '') ~= event.expected then
    return CONFLICT
  end
  if not fence[1] and forgotten and version <= forgotten then
    return CONFLICT -- a delete has come and its tombstone is gone again
  end
  if has_failed then
    local letter = redis.call('HGET', failed, event.id)
    event.heals = letter and padded(letter) <= version
  end
  events[i] = event
end

-- Only now: with a fence that has moved, the deltas mean nothing.
local docs, tokens = whole(counters[3]), whole(counters[4])
local changes, moves = whole(counters[6] or '0'), whole(counters[7] or '0')
if not docs or not tokens or not changes or not moves or docs + docs_delta < 0 or tokens + tokens_delta < 0 then
  return redis.error_reply('CORRUPT the counters of the namespace are too low or no numbers; run: jiyi check')
end

local blocks = {}
for i = 1, block_count do
  local block = { key = KEYS[first_block + i - 1] }
  redis.call('HLEN', block.key)
  block.births = take_list(2 * tonumber(take()))
  block.deaths = take_list(tonumber(take()))
  blocks[i] = block
end

-- Postings without the records of dead documents. Inline values may be edited: readers take them whole.
local function without(records, dead)
  local gone, kept = {}, {}
  for i = 1, #dead, 4 do
    gone[string.sub(dead, i, i + 3)] = true
  end
  for i = 1, #records, 6 do
    local record = string.sub(records, i, i + 5)
    if not gone[string.sub(record, 1, 4)] then
      kept[#kept + 1] = record
    end
  end
  return table.concat(kept)
end

-- What has to be written, found bucket by bucket. This is the hot loop.
local sub, pack_df, unpack_df = string.sub, struct.pack, struct.unpack
local buckets, appends, spills, emptied = {}, {}, {}, {}
local term_key = first_term
local GONE = ''

-- Gives the new dictionary value of a term (GONE when no document has it) and notes what follows for its postings;
-- nil and what is wrong where the stored value cannot be right.
local function plan_term(key, value, postings, dead)
  local before = value and unpack_df('<I4', value) or 0
  if before < #dead / 4 then
    return nil, 'a document frequency is too low'
  end
  local df = before + #postings / 6 - #dead / 4
  if value and #value == 4 then
    local has_postings = redis.call('STRLEN', key) > GENERATION_BYTES
    if df == 0 then
      emptied[#emptied + 1] = key
      return GONE
    end
    if postings ~= '' then
      if not has_postings then
        return nil, 'the postings of a term are lost'
      end
      appends[#appends + 1] = { key, postings }
    end
    return pack_df('<I4', df)
  end
  local records = value and sub(value, 5) .. postings or postings
  if dead ~= '' then
    records = without(records, dead)
  end
  if #records ~= 6 * df then
    return nil, 'the postings of a term are not as many as its document frequency'
  end
  if df == 0 then
    return GONE
  end
  if 4 + #records <= INLINE_BYTES then
    return pack_df('<I4', df) .. records
  end
  redis.call('STRLEN', key)
  spills[#spills + 1] = { key, generation .. records }
  return pack_df('<I4', df)
end

for i = 1, bucket_count do
  local changed, changed_count, gone = {}, 0, {}
  local bucket = { key = KEYS[first_bucket + i - 1], changed = changed, gone = gone }
  local plain = tonumber(take())
  local count = plain + tonumber(take())
  for from = 1, count, CHUNK do
    local size = math.min(CHUNK, count - from + 1)
    local terms = {}
    for j = 1, size do
      terms[j] = sub(KEYS[term_key + j - 1], term_from)
    end
    local values = redis.call('HMGET', bucket.key, unpack(terms))
    for j = 1, size do
      local postings, dead = take(), ''
      if from + j - 1 > plain then
        dead = take()
      end
      local new, fault = plan_term(KEYS[term_key], values[j], postings, dead)
      if not new then
        return redis.error_reply('CORRUPT ' .. fault .. '; run: jiyi check')
      elseif new == GONE then
        gone[#gone + 1] = terms[j]
      else
        changed[changed_count + 1], changed[changed_count + 2] = terms[j], new
        changed_count = changed_count + 2
      end
      term_key = term_key + 1
    end
  end
  buckets[i] = bucket
end

if at ~= #ARGV + 1 or term_key ~= #KEYS + 1 then
  return redis.error_reply('ERR keys or arguments are missing or too many')
end

-- Writes. Nothing below can fail: types, counters, permissions and memory were checked above.

local function chunked(command, key, list)
  for from = 1, #list, CHUNK do
    redis.call(command, key, unpack(list, from, math.min(from + CHUNK - 1, #list)))
  end
end

for _, event in ipairs(events) do
  if event.op == 'f' then
    redis.call('HSET', event.key, 'entry', event.version)
  else
    redis.call('DEL', event.key)
    if has_expiries then
      redis.call('ZREM', expiries, event.id)
    end
    if event.op == 'w' then
      redis.call('HSET', event.key, 'entry', event.version, 'indexed_at', now, unpack(event.fields))
      if has_tombstones then
        redis.call('ZREM', tombstones, event.id)
      end
      if event.expires_at ~= '' then
        redis.call('ZADD', expiries, event.expires_at, event.id)
      end
    else
      redis.call('HSET', event.key, 'entry', event.version, 'deleted_at', now)
      redis.call('ZADD', tombstones, event.ms, event.id)
    end
  end
  if event.heals then
    redis.call('HDEL', failed, event.id)
  end
end

for _, block in ipairs(blocks) do
  chunked('HSET', block.key, block.births)
  chunked('HDEL', block.key, block.deaths)
end

for _, bucket in ipairs(buckets) do
  chunked('HSET', bucket.key, bucket.changed)
  chunked('HDEL', bucket.key, bucket.gone)
end
for _, append in ipairs(appends) do
  redis.call('APPEND', append[1], append[2])
end
for _, spill in ipairs(spills) do
  redis.call('SET', spill[1], spill[2])
end
for _, key in ipairs(emptied) do
  redis.call('DEL', key)
end

if releases then
  redis.call('ZREM', reservations, token)
end
if #journal_records > 0 then
  redis.call('APPEND', journal, (journal_bytes == 0 and '\0\0\0\0' or '') .. journal_records)
  redis.call('HSET', stats, 'docs', docs + docs_delta, 'tokens', tokens + tokens_delta, 'changes', changes + 1)
end
if moves_fences then
  redis.call('HSET', stats, 'fence_moves', moves + 1)
end
return OK
