-- Ends the lease of a key, whoever holds it, or removes the record, and offers the key to the head of the queue.
--
-- KEYS     1 lock, 2 queue
-- Returns  1 if there was a lease or a record, else 0

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
