#!lua
-- Mend what is derived in the hashes of some memories: forward list, length, document number, ...
--
-- Guarantee: a memory is mended only while its fence is as the caller found it, that is, while it is the same
--   document. If any is, the namespace gets a new epoch in the same step, "<old>~<revision>": what others have
--   prepared from the damaged state is refused and prepared again. Numbers that are given are never given out again.
--
-- KEYS[1]      stats:{ns}
-- KEYS[2..]    memory:{ns}:<id>
-- ARGV[1]      revision: never given before
-- ARGV[2..]    per memory: entry and document number as they were found ("": none), "1" if it needs a new number, how
--              many fields and values are to be set, these, how many fields are to be removed, these
--
-- Returns per memory its document number now, or nil when it has moved on; nothing at all for an unknown namespace.

local stats, revision = KEYS[1], ARGV[1]
local MAX_DOC = 4294967294
local at = 2 -- next unread argument

local function take()
  local value = ARGV[at]
  at = at + 1
  return value
end

local function take_list()
  local count, list = tonumber(take()), {}
  for i = 1, count do
    list[i] = take()
  end
  return list
end

local known = redis.call('HMGET', stats, 'epoch', 'next_doc')
if not known[1] then
  return {}
end
local next_doc = tonumber(known[2] or '')
if not next_doc then
  return redis.error_reply('CORRUPT the next document number of the namespace is lost; run: jiyi check')
end
local first, mended, answer = next_doc, {}, {}
for i = 2, #KEYS do
  local one = { key = KEYS[i], entry = take(), doc = take() }
  local needs_number = take() == '1'
  one.fields, one.removed = take_list(), take_list()
  local fence = redis.call('HMGET', one.key, 'entry', 'doc')
  answer[i - 1] = false
  if (fence[1] or '') == one.entry and (fence[2] or '') == one.doc then
    answer[i - 1] = one.doc
    mended[#mended + 1] = one
    if needs_number then
      answer[i - 1] = string.format('%.0f', next_doc)
      next_doc = next_doc + 1
      one.fields[#one.fields + 1] = 'doc'
      one.fields[#one.fields + 1] = answer[i - 1]
    end
  end
end
if at ~= #ARGV + 1 then
  return redis.error_reply('ERR keys or arguments are missing or too many')
end
if next_doc > MAX_DOC then
  return redis.error_reply('FULL the namespace has used up its document numbers')
end

for _, one in ipairs(mended) do
  if #one.removed > 0 then
    redis.call('HDEL', one.key, unpack(one.removed))
  end
  if #one.fields > 0 then
    redis.call('HSET', one.key, unpack(one.fields))
  end
end
if next_doc > first then
  redis.call('HINCRBY', stats, 'next_doc', next_doc - first)
end
if #mended > 0 then
  redis.call('HSET', stats, 'epoch', string.match(known[1], '^[^~]*') .. '~' .. revision)
end
return answer
