#!lua flags=allow-oom
-- Note that a replayed event has been processed, whatever came of it.
--
-- Guarantee: all or nothing. The memory is no longer failed, unless a later letter says so. If the letter is still
--   in the dead-letter stream (its replay broke off before it was removed), it counts as filed again.
--
-- KEYS[1..3]   dead:{ns}, failed:{ns}, letters:{ns}
-- ARGV[1]      memory id
-- ARGV[2]      version of the event
--
-- Returns 1 when something was changed, else 0.

local dead, failed, letters = KEYS[1], KEYS[2], KEYS[3]
local id, version = ARGV[1], ARGV[2]

if #ARGV ~= 2 then
  return redis.error_reply('ERR arguments are missing')
end
local filed = redis.call('HGET', letters, version)
local letter = filed and string.match(filed, '^replayed (%S+)$')
local kept = letter and #redis.call('XRANGE', dead, letter, letter) > 0
local mark = redis.call('HGET', failed, id)
local changed = 0
if kept then
  redis.call('HSET', letters, version, letter)
  changed = 1
elseif letter then
  changed = redis.call('HDEL', letters, version)
end
if mark and string.match(mark, '^%S+') == version then
  redis.call('HDEL', failed, id)
  changed = 1
end
return changed
