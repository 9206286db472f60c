-- Ends the leases of a key, whoever holds them, or removes the record, and offers the key to the attempts that are next.
--
-- KEYS     1 lock, 2 queue
-- Returns  1 if there was a lease or a record, else 0

--@include value.lua
--@include holders.lua
--@include queue.lua

local now = clock()
local lock = look(now)
if lock.error then
  return lock.error
end
prune(now)
redis.call('DEL', KEYS[1])
offer(now, {held = 0}, true)
return lock.kind and 1 or 0
