#!lua flags=allow-oom
-- Remove a dead letter.
--
-- Guarantee: all or nothing. The mark of its memory goes with it, unless another letter stands for it (a later one, or
--   the same event's, filed again), or the letter has been replayed: then the mark and the version's place in
--   `letters` stay until the event is processed.
--
-- KEYS[1..3]   dead:{ns}, failed:{ns}, letters:{ns}
-- ARGV[1]      id of the letter in the dead-letter stream
-- ARGV[2]      field of `failed`
-- ARGV[3]      version of the dead event
-- ARGV[4]      "1": the event has been replayed
--
-- Returns 1 when the letter was there, else 0.

local dead, failed, letters = KEYS[1], KEYS[2], KEYS[3]
local letter, field, version, replayed = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1'

if #ARGV ~= 4 then
  return redis.error_reply('ERR arguments are missing')
end
local mark = redis.call('HGET', failed, field)
local filed = redis.call('HGET', letters, version)
local under_way = filed == 'replayed ' .. letter
local ours = not filed or filed == letter or under_way
local removed = redis.call('XDEL', dead, letter)
if filed == letter or (under_way and not replayed) then
  redis.call('HDEL', letters, version)
end
if not replayed and ours and mark and string.match(mark, '^%S+') == version then
  redis.call('HDEL', failed, field)
end
return removed
