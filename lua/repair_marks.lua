#!lua
-- Set the tombstones' and expiries' marks of some memories by what the memories themselves say.
--
-- Guarantee: memories and marks at one instant. A memory with `deleted_at` is a tombstone, and keeps nothing else,
--   unless it has both content and a document number. A tombstone whose fence is no entry id keeps its mark: it is
--   not known when it was deleted. A mark set that is no sorted set is replaced; then every memory has to be passed
--   through here.
--
-- KEYS[1..2]   tombstones:{ns}, expiries:{ns}
-- KEYS[3..]    memory:{ns}:<id>
-- ARGV[1..]    id, one per memory key
--
-- Returns how many marks and tombstones were mended.

local tombstones, expiries = KEYS[1], KEYS[2]
local LARGEST = '18446744073709551615'

-- Milliseconds of an entry id, as text: a double would not tell the largest from others.
local function milliseconds(entry)
  local ms, seq = string.match(entry or '', '^(%d+)%-(%d+)$')
  local fits = ms and #ms <= #LARGEST and #seq <= #LARGEST
  if fits and string.rep('0', 20 - #ms) .. ms <= LARGEST and string.rep('0', 20 - #seq) .. seq <= LARGEST then
    return ms
  end
  return nil
end

if #ARGV ~= #KEYS - 2 then
  return redis.error_reply('ERR keys or arguments are missing or too many')
end
local tombstones_type, expiries_type = redis.call('TYPE', tombstones).ok, redis.call('TYPE', expiries).ok
local changes = {}

local function compare(key, kind, id, due)
  local score = kind == 'zset' and redis.call('ZSCORE', key, id)
  if due and not (score and tonumber(score) == tonumber(due)) then
    changes[#changes + 1] = { key, id, due }
  elseif score and not due then
    changes[#changes + 1] = { key, id, false }
  end
end

local cluttered = {}
for i, id in ipairs(ARGV) do
  local memory = KEYS[i + 2]
  local entry, is_tombstone, deleted_at, expires
  if redis.call('TYPE', memory).ok == 'hash' then
    local known = redis.call('HMGET', memory, 'entry', 'doc', 'deleted_at', 'expires_at')
    entry, deleted_at = known[1], known[3]
    is_tombstone = deleted_at and not (known[2] and redis.call('HEXISTS', memory, 'content') == 1)
    expires = not is_tombstone and known[2] and known[4] and string.match(known[4], '^%-?%d+$')
  end
  compare(expiries, expiries_type, id, expires)
  if not is_tombstone then
    compare(tombstones, tombstones_type, id, nil)
  elseif milliseconds(entry) then
    compare(tombstones, tombstones_type, id, milliseconds(entry))
    if redis.call('HLEN', memory) > 2 then
      cluttered[#cluttered + 1] = { memory, entry, deleted_at }
    end
  end
end

if tombstones_type ~= 'zset' and tombstones_type ~= 'none' then
  redis.call('DEL', tombstones)
end
if expiries_type ~= 'zset' and expiries_type ~= 'none' then
  redis.call('DEL', expiries)
end
for _, change in ipairs(changes) do
  if change[3] then
    redis.call('ZADD', change[1], change[3], change[2])
  else
    redis.call('ZREM', change[1], change[2])
  end
end
for _, one in ipairs(cluttered) do
  redis.call('DEL', one[1])
  redis.call('HSET', one[1], 'entry', one[2], 'deleted_at', one[3])
end
return #changes + #cluttered
