-- Takes the key away from whoever has it, a record included.
--
-- KEYS     1 lock, 2 queue
-- Returns  1 if there was anything, else 0

--@include value.lua
--@include queue.lua

local value = redis.call('GET', KEYS[1])
if value and not read(value) then
  return foreign()
end
local now = clock()
prune(now)
local freed = redis.call('DEL', KEYS[1])
offer(now)
return freed
