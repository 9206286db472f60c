-- Reads the state of a key. Changes nothing.
--
-- KEYS     1 lock, 2 queue, 3 fence
-- Returns  {value or false, TTL of the value in ms, the owners in the queue, the token counter or false}

--@include queue.lua

local now = clock()
local waiting = {}
for _, owner in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], 0, CLOCKS)) do
  if kept_until(owner) > now then
    waiting[#waiting + 1] = owner
  end
end
return {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]), waiting, redis.call('GET', KEYS[3])}
