#!lua
-- Mend document numbers of one block of ids.
--
-- Guarantee: a number is set to a memory only while that memory has it, and removed only while its memory has it
--   not; either way only if the block still says what the caller has read. A block that is no hash is replaced.
--
-- KEYS[1]      ids:{ns}:<block>
-- KEYS[2..]    per number memory:{ns}:<id> of the memory that shall have it, or of the one that it shall be taken from
-- ARGV[1..]    per number: the number, the id that the block has for it ("": none), the id that it shall have
--              ("": none), "1" to remove it whatever the memory says
--
-- Returns how many numbers were mended.

local block = KEYS[1]
local planned, removed, mended = {}, {}, 0

if #ARGV ~= 4 * (#KEYS - 1) then
  return redis.error_reply('ERR keys or arguments are missing or too many')
end
local kind = redis.call('TYPE', block).ok
for i = 2, #KEYS do
  local number, current, id, anyway = ARGV[4 * i - 7], ARGV[4 * i - 6], ARGV[4 * i - 5], ARGV[4 * i - 4] == '1'
  local memory = KEYS[i]
  local has = redis.call('TYPE', memory).ok == 'hash' and redis.call('HGET', memory, 'doc') == number
  local stands = kind == 'hash' and redis.call('HGET', block, number) or ''
  if stands == current then
    if id ~= '' and has then
      planned[#planned + 1] = { number, id }
    elseif id == '' and (anyway or not has) then
      removed[#removed + 1] = number
    end
  end
end

if kind ~= 'hash' and kind ~= 'none' then
  redis.call('DEL', block)
  mended = 1
end
for _, pair in ipairs(planned) do
  redis.call('HSET', block, pair[1], pair[2])
end
for _, number in ipairs(removed) do
  mended = mended + redis.call('HDEL', block, number)
end
return mended + #planned
