#!lua flags=allow-oom
-- Remove from the stream what every group has processed, and find out what somebody else has removed.
--
-- Guarantee: never removes an unread or pending entry. An entry that vanished before it was acknowledged is counted
--   once: at the first call that sees exactly what is unread (always, unless more than COUNTED entries lie between
--   the oldest pending and the last delivered one).
--
-- KEYS[1..2]   the stream, processed:{stream}
-- ARGV[1]      group
--
-- Returns {entries removed, entries found lost now, the last entry read at the last look, the first entry that is
--   there now ("" for none)}; {} when stream or group do not exist. What was lost unread lay between the latter two.

local stream, processed, group = KEYS[1], KEYS[2], ARGV[1]
local COUNTED = 500

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

-- The first entry id after this one.
local function after(id)
  local ms, seq = string.match(id, '^(%d+)%-(%d+)$')
  local digits, carry = {}, 1
  for i = #seq, 1, -1 do -- in decimals: a double would lose the last ones
    local digit = string.byte(seq, i) - 48 + carry
    carry = digit == 10 and 1 or 0
    table.insert(digits, 1, digit % 10)
  end
  return ms .. '-' .. (carry == 1 and '1' or '') .. table.concat(digits)
end

if redis.call('EXISTS', stream) == 0 then
  return {}
end
local known = redis.call('HMGET', processed, group .. ':acknowledged', group .. ':before', group .. ':lost',
  group .. ':delivered')
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

local removed = redis.call('XTRIM', stream, 'MINID', floor)

local about = named(redis.call('XINFO', 'STREAM', stream))
local newest = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
local unread = 0
if newest and padded(newest[1]) > padded(delivered) then
  local read = #redis.call('XRANGE', stream, floor, delivered, 'COUNT', COUNTED + 1)
  if read > COUNTED then
    return { removed, 0, delivered, '' }
  end
  unread = about.length - read
end
local accounted = tonumber(known[1] or '0') + pending + unread
if not known[2] then -- the group is older than its account
  redis.call('HSET', processed, group .. ':before', about['entries-added'] - accounted, group .. ':lost', 0)
  known[2], known[3] = about['entries-added'] - accounted, '0'
end
local lost = about['entries-added'] - tonumber(known[2]) - accounted
local new = lost - tonumber(known[3])
if new ~= 0 then
  redis.call('HSET', processed, group .. ':lost', lost)
end
if known[4] ~= delivered then
  redis.call('HSET', processed, group .. ':delivered', delivered)
end
local first = redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
return { removed, math.max(0, new), known[4] or '0-0', first and first[1] or '' }
