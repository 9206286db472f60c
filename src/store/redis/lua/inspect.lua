-- Reads the state of a key. Changes nothing.
--
-- KEYS     1 lock, 2 queue, 3 fence
-- Returns  {the lock's value or false, its TTL in ms,
--           the holders of a shared or counted lock, each followed by the ms until its lease ends,
--           the attempts in the queue, the token counter or false}
--          Of the holders and of the attempts, the first LISTED ones.

--@include queue.lua

local LISTED = 1000
local now = clock()
local value, holders = redis.pcall('GET', KEYS[1]), {}
if type(value) == 'table' then
  local found = redis.pcall('ZRANGEBYSCORE', KEYS[1], string.format('(%.0f', now), '+inf', 'WITHSCORES', 'LIMIT', 0, LISTED)
  if found.err then
    return value
  end
  for place = 1, #found, 2 do
    holders[place], holders[place + 1] = found[place], found[place + 1] - now
  end
  value = false
end
local gone, waiting = {}, {}
for _, deadline in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], CLOCKS, string.format('%.0f', now), 'LIMIT', 0, LISTED)) do
  gone[deadline] = true
end
for _, attempt in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], 0, CLOCKS, 'LIMIT', 0, LISTED)) do
  if not gone['until:' .. attempt] then
    waiting[#waiting + 1] = attempt
  end
end
return {value, redis.call('PTTL', KEYS[1]), holders, waiting, redis.call('GET', KEYS[3])}
