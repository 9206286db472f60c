-- Raises the token counter of a key's bucket. The counter is never lowered.
--
-- KEYS     1 fence
-- ARGV     1 the number that every later token must exceed
-- Returns  the counter: the highest number that counts as handed out now

local floor = tonumber(ARGV[1])
local last = redis.call('INCRBY', KEYS[1], 0)
if last == 0 then
  local time = redis.call('TIME')
  last = time[1] * 1000000 + time[2]
end
last = math.max(last, floor)
redis.call('SET', KEYS[1], string.format('%.0f', last))
return last
