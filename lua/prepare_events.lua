#!lua
-- Look at the stored state of a batch's memories and reserve document numbers for the writes that need one.
--
-- Guarantee: the answer is one consistent view. Creates `stats` when the namespace is new and reserves
--   numbers that are never given out again in this epoch; changes nothing else. A reserved number that is
--   not used leaves a gap, which costs nothing. The reservation is recorded under the caller's token: a server
--   that has lost it (a replica that was behind, a cut file) gives the same numbers out again, and
--   `apply_events` can tell. Tokens of a day ago belong to nobody and are forgotten.
--
-- KEYS[1..2]   stats:{ns}, reservations:{ns}
-- KEYS[3..]    memory:{ns}:<id>, one per event
-- ARGV[1]      token of this call, never used before: name of the reservation, and epoch if the namespace is new
-- ARGV[2]      now (epoch ms)
-- ARGV[3]      analyzer fingerprint of the caller
-- ARGV[4]      "1": an event whose version is stored already is to be applied again (re-analysis, expiry)
-- ARGV[5..]    version, version hash ("" for a delete), one pair per event
--
-- Returns {epoch, analyzer, first reserved number, {status, entry, doc, length, terms, author,
--   source_system, user_id, session_id, kind, tags}, ...}. With another analyzer than the caller's: the
--   first two only, and nothing is reserved.
-- Status: 0 NEW (no live document), 1 REPLACES (a live document, described by the rest), 2 APPLIED,
--   3 SUPERSEDED, 4 UNCHANGED (same version hash: only the fence has to move; entry and doc are given).

local stats, reservations = KEYS[1], KEYS[2]
local token, now, analyzer, again = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4] == '1'
local NEW, REPLACES, APPLIED, SUPERSEDED, UNCHANGED = 0, 1, 2, 3, 4
local MAX_DOC = 4294967294
local DAY_MS = 86400000

-- Entry ids are compared as text padded to equal width: a double would lose the last digits.
local function padded(entry)
  local ms, seq = string.match(entry, '^(%d+)%-(%d+)$')
  if not ms then
    return nil
  end
  return string.rep('0', 20 - #ms) .. ms .. string.rep('0', 20 - #seq) .. seq
end

if #ARGV ~= 2 * #KEYS or not now then
  return redis.error_reply('ERR keys or arguments are missing or too many')
end
local known = redis.call('HMGET', stats, 'epoch', 'analyzer', 'next_doc', 'forgotten')
local epoch, next_doc = known[1], tonumber(known[3] or '0')
if not epoch ~= not known[3] or not next_doc then
  return redis.error_reply('CORRUPT the next document number of the namespace is lost; run: jiyi check')
end
if epoch and known[2] ~= analyzer then
  return { epoch, known[2] }
end
local forgotten = known[4] and padded(known[4])
if known[4] and not forgotten then
  return redis.error_reply('CORRUPT the newest forgotten version of the namespace is no entry id; run: jiyi check')
end

redis.call('ZCARD', reservations)
local states, needed = {}, 0
for i = 3, #KEYS do
  local version, version_hash = ARGV[2 * i - 1], ARGV[2 * i]
  local stored = redis.call('HMGET', KEYS[i], 'entry', 'doc', 'length', 'terms', 'author', 'source_system',
    'user_id', 'session_id', 'kind', 'tags', 'version_hash')
  local entry, doc = stored[1], stored[2]
  local status = doc and REPLACES or NEW
  if entry then
    local theirs, ours = padded(entry), padded(version)
    if not theirs then
      return redis.error_reply('CORRUPT the fence of a memory is no entry id')
    end
    if theirs > ours or (again and theirs < ours) then
      status = SUPERSEDED
    elseif theirs == ours and not again then
      status = APPLIED
    elseif doc and not again and version_hash ~= '' and stored[11] == version_hash then
      status = UNCHANGED
    end
  elseif forgotten and padded(version) <= forgotten then
    status = SUPERSEDED -- its memory was deleted, and the tombstone is gone (`drop_tombstones`)
  end
  if again and not doc then
    status = SUPERSEDED -- nothing is brought back to life by applying it again
  end
  if version_hash ~= '' and (status == NEW or status == REPLACES) then
    needed = needed + 1
  end
  stored[11] = nil
  if status ~= REPLACES then
    stored = status == UNCHANGED and { entry, doc } or { entry }
  end
  table.insert(stored, 1, status)
  states[#states + 1] = stored
end

if next_doc + needed > MAX_DOC then
  return redis.error_reply('FULL the namespace has used up its document numbers')
end
if not epoch then
  epoch = token
  redis.call('HSET', stats, 'epoch', epoch, 'analyzer', analyzer, 'docs', 0, 'tokens', 0, 'next_doc', 0)
end
if needed > 0 then
  redis.call('HINCRBY', stats, 'next_doc', needed)
  redis.call('ZREMRANGEBYSCORE', reservations, '-inf', now - DAY_MS)
  redis.call('ZADD', reservations, now, token)
end
local answer = { epoch, analyzer, next_doc }
for i, state in ipairs(states) do
  answer[3 + i] = state
end
return answer
