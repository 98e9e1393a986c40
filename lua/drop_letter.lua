#!lua
-- Remove a dead letter, and the mark of its memory unless a later letter has set it.
--
-- Guarantee: both or neither.
--
-- KEYS[1..2]   dead:{ns}, failed:{ns}
-- ARGV[1]      id of the letter in the dead-letter stream ("": only the mark)
-- ARGV[2]      field of `failed` ("": only the letter)
-- ARGV[3]      entry id of the dead event
--
-- Returns 1 when something was removed, else 0.

local dead, failed = KEYS[1], KEYS[2]
local letter, field, entry = ARGV[1], ARGV[2], ARGV[3]

if #ARGV ~= 3 then
  return redis.error_reply('ERR arguments are missing')
end
local mark = redis.call('HGET', failed, field)
local removed = 0
if letter ~= '' then
  removed = redis.call('XDEL', dead, letter)
end
if mark and string.match(mark, '^%S+') == entry then
  redis.call('HDEL', failed, field)
  removed = 1
end
return removed
