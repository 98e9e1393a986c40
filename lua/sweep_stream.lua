#!lua flags=allow-oom
-- Remove from the stream what every group has processed, and find out what somebody else has removed.
--
-- Guarantee: never removes an unread or pending entry. An entry that vanished before it was acknowledged is counted
--   once: at the first call that sees exactly what is unread (always, unless entries are unread and more than COUNTED
--   lie between the oldest one that some group has not processed and the last one delivered to ours). Under the same
--   condition the server's count of what the group has read is set right, and with it the lag that XINFO tells: Redis
--   7.0 tells neither replicas nor the append-only file of that count, so it is wrong after a failover or a restart;
--   and any server loses it where the group reads past entries that somebody removed.
--
-- KEYS[1..2]   the stream, processed:{stream}
-- ARGV[1]      group
--
-- Returns {entries removed, entries found lost now, the last entry read at the last look, the first entry that is
--   there now ("" for none)}; {} when stream or group do not exist. What was lost unread lay between the latter two.

local stream, processed, group = KEYS[1], KEYS[2], ARGV[1]
local COUNTED = 500
local LAST = '18446744073709551615' -- of either half of an entry id

local function padded(id)
  local ms, seq = string.match(id, '^(%d+)%-(%d+)$')
  return string.rep('0', 20 - #ms) .. ms .. string.rep('0', 20 - #seq) .. seq
end

local function named(flat)
  local fields = {}
  for i = 1, #flat, 2 do
    fields[flat[i]] = flat[i + 1]
  end
  return fields
end

local function incremented(number)
  local digits, carry = {}, 1
  for i = #number, 1, -1 do -- in decimals: a double would lose the last ones
    local digit = string.byte(number, i) - 48 + carry
    carry = digit == 10 and 1 or 0
    table.insert(digits, 1, digit % 10)
  end
  return (carry == 1 and '1' or '') .. table.concat(digits)
end

-- The first entry id after this one; of the very last id itself, which then stays.
local function after(id)
  local ms, seq = string.match(id, '^(%d+)%-(%d+)$')
  if seq ~= LAST then
    return ms .. '-' .. incremented(seq)
  end
  return ms == LAST and id or incremented(ms) .. '-0'
end

local function whole(value)
  return #value <= 15 and string.match(value, '^%-?%d+$') and tonumber(value)
end

if redis.call('EXISTS', stream) == 0 then
  return {}
end
local known = redis.call('HMGET', processed, group .. ':acknowledged', group .. ':before', group .. ':lost',
  group .. ':delivered')
local acknowledged, before, known_lost = whole(known[1] or '0'), whole(known[2] or '0'), whole(known[3] or '0')
if not acknowledged or not before or not known_lost then
  return redis.error_reply('CORRUPT the account of the group is no number; delete it (HDEL), and it begins anew')
end
local floor, ours, pending = nil, nil, nil
for _, flat in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
  local info = named(flat)
  local held = redis.call('XPENDING', stream, info.name)
  local first = held[2] or after(info['last-delivered-id'])
  if not floor or padded(first) < padded(floor) then
    floor = first
  end
  if info.name == group then
    ours, pending = info, held[1]
  end
end
if not ours then
  return {}
end
local delivered = ours['last-delivered-id']
local about = named(redis.call('XINFO', 'STREAM', stream))
local newest = about['last-entry']
local has_unread = newest and padded(newest[1]) > padded(delivered)
local read = has_unread and #redis.call('XRANGE', stream, floor, delivered, 'COUNT', COUNTED + 1) or 0
local first = redis.call('XRANGE', stream, floor, '+', 'COUNT', 1)[1]

local removed = redis.call('XTRIM', stream, 'MINID', floor)
if read > COUNTED then
  return { removed, 0, delivered, '' }
end
local unread = has_unread and about.length - removed - read or 0
local accounted = acknowledged + pending + unread
if not known[2] then -- the group is older than its account
  before, known_lost = about['entries-added'] - accounted, 0
  redis.call('HSET', processed, group .. ':before', before, group .. ':lost', 0)
end
local lost = about['entries-added'] - before - accounted
if lost ~= known_lost then
  redis.call('HSET', processed, group .. ':lost', lost)
end
if known[4] ~= delivered then
  redis.call('HSET', processed, group .. ':delivered', delivered)
end
local entries_read = about['entries-added'] - unread
if ours['entries-read'] ~= entries_read then
  redis.call('XGROUP', 'SETID', stream, group, delivered, 'ENTRIESREAD', entries_read)
end
return { removed, math.max(0, lost - known_lost), known[4] or '0-0', first and first[1] or '' }
