#!lua
-- Replace dictionary entries and postings of some terms.
--
-- Guarantee: a term is replaced only by what is right now. That is so if entry and postings are still those that the
--   caller has read, for every change of a term's documents changes one of them. If they have moved, and the caller
--   has read them at the very instant for which it has worked out the new ones, then what was added since is added to
--   these, in a key of their own, and df is moved by the difference that it has made since. Postings in a key of
--   their own get a new generation: readers read them whole. Where no entry points to a key, the key is removed.
--
-- KEYS[1]      stats:{ns}
-- KEYS[2..]    per term: terms:{ns}:<bucket>, index:{ns}:<term>, and the same again or rebuild:{ns}:<token>
-- ARGV[1]      epoch
-- ARGV[2..]    eight per term: the term; its entry as it was read ("": none); generation and bytes of its postings
--              key as they were read, where the entry points there ("", 0: no key; -1 bytes: one of another type);
--              "1" if all was read at one instant; the new entry ("": none); the new postings, sealed or not and
--              without generation, if it points to a key; bytes of the postings in `rebuild`, 4 for their generation
--              included (0: they are in the argument before)
--
-- Returns per term 1 when it was replaced, 0 when it has moved on; nothing at all in another epoch.

local stats, epoch = KEYS[1], ARGV[1]
local GENERATION_BYTES, POINTER_BYTES, POSTING_BYTES, MAX_DOC, MOST_BYTES = 4, 4, 6, 4294967294, 65536

if #ARGV ~= 8 * (#KEYS - 1) / 3 + 1 then
  return redis.error_reply('ERR keys or arguments are missing or too many')
end
local known = redis.call('HMGET', stats, 'epoch', 'next_doc')
if known[1] ~= epoch then
  return {}
end
local next_doc = tonumber(known[2] or '')
if not next_doc or next_doc >= MAX_DOC then
  return redis.error_reply('FULL the namespace has used up its document numbers')
end

local function df_of(entry)
  return entry == '' and 0 or struct.unpack('<I4', entry)
end

local function is_inline(entry)
  return entry == '' or (#entry > POINTER_BYTES and (#entry - POINTER_BYTES) % POSTING_BYTES == 0)
end

-- Postings of one short list that are not in another.
local function added(before, now)
  local old, new = {}, {}
  for i = POINTER_BYTES + 1, #before, POSTING_BYTES do
    old[string.sub(before, i, i + POSTING_BYTES - 1)] = true
  end
  for i = POINTER_BYTES + 1, #now, POSTING_BYTES do
    local record = string.sub(now, i, i + POSTING_BYTES - 1)
    if not old[record] then
      new[#new + 1] = record
    end
  end
  return table.concat(new)
end

-- What was added since the caller has read a term that has moved; nil where that cannot be told.
local function since(plan, before, generation, bytes)
  if is_inline(before) and is_inline(plan.stands) then
    return added(before, plan.stands)
  end
  if #before ~= POINTER_BYTES or #plan.stands ~= POINTER_BYTES or generation ~= plan.generation then
    return nil
  end
  if plan.index_type ~= 'string' then
    return bytes == plan.bytes and '' or nil
  end
  if bytes < GENERATION_BYTES or plan.bytes < bytes or plan.bytes - bytes > MOST_BYTES then
    return nil
  end
  return redis.call('GETRANGE', plan.index, bytes, -1)
end

local plans, answer, lengthens = {}, {}, false
for i = 1, (#KEYS - 1) / 3 do
  local a = 8 * i - 6
  local before, generation, bytes, at_once = ARGV[a + 1], ARGV[a + 2], tonumber(ARGV[a + 3]), ARGV[a + 4] == '1'
  local plan = { bucket = KEYS[3 * i - 1], index = KEYS[3 * i], rebuild = KEYS[3 * i + 1], term = ARGV[a],
    entry = ARGV[a + 5], records = ARGV[a + 6], rebuilt = tonumber(ARGV[a + 7]), since = '' }
  plan.bucket_type = redis.call('TYPE', plan.bucket).ok
  plan.stands = plan.bucket_type == 'hash' and redis.call('HGET', plan.bucket, plan.term) or ''
  plan.index_type = redis.call('TYPE', plan.index).ok
  plan.generation, plan.bytes = '', plan.index_type == 'none' and 0 or -1
  if plan.index_type == 'string' then
    plan.generation = redis.call('GETRANGE', plan.index, 0, GENERATION_BYTES - 1)
    plan.bytes = redis.call('STRLEN', plan.index)
  end
  local same = plan.stands == before
  if same and #before == POINTER_BYTES then
    same = plan.generation == generation and plan.bytes == bytes
  end
  local fits = plan.rebuilt == 0 or redis.call('STRLEN', plan.rebuild) == plan.rebuilt
  if fits and not same and at_once then
    plan.since = since(plan, before, generation, bytes)
    local df = plan.since and df_of(plan.entry) + df_of(plan.stands) - df_of(before)
    if not df or df < 0 then
      fits = false
    elseif df == 0 then
      plan.entry = ''
    else
      if #plan.entry > POINTER_BYTES then
        plan.records = string.sub(plan.entry, POINTER_BYTES + 1)
      end
      plan.entry = struct.pack('<I4', df)
    end
  end
  answer[i] = fits and (same or at_once) and 1 or 0
  if answer[i] == 1 then
    plans[#plans + 1] = plan
    lengthens = lengthens or #plan.entry == POINTER_BYTES
  end
end

-- The first write, which fails where `changes` is no number. Readers see by it that something is not as they know it.
if #plans > 0 then
  redis.call('HINCRBY', stats, 'changes', 1)
end

-- A document number that nobody gets: so no other list of this epoch has it as generation.
local fresh = ''
if lengthens then
  fresh = struct.pack('<I4', redis.call('HINCRBY', stats, 'next_doc', 1) - 1)
end
for _, plan in ipairs(plans) do
  if plan.bucket_type ~= 'hash' and plan.bucket_type ~= 'none' then
    redis.call('DEL', plan.bucket)
  end
end
for _, plan in ipairs(plans) do
  if plan.entry == '' then
    redis.call('HDEL', plan.bucket, plan.term)
  else
    redis.call('HSET', plan.bucket, plan.term, plan.entry)
  end
  if #plan.entry ~= POINTER_BYTES then
    redis.call('DEL', plan.index)
  elseif plan.rebuilt > 0 then
    redis.call('SETRANGE', plan.rebuild, 0, fresh)
    redis.call('APPEND', plan.rebuild, plan.since)
    redis.call('RENAME', plan.rebuild, plan.index)
    redis.call('PERSIST', plan.index)
  else
    redis.call('SET', plan.index, fresh .. plan.records .. plan.since)
  end
end
return answer
