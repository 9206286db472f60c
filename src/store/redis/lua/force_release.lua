-- Ends the leases of a key, whoever holds them, or removes the record, and offers the key to the attempts that are next.
--
-- KEYS     1 lock, 2 queue
-- ARGV     1 the owner that must be among the holders, or "record" if there must be a record; missing for anything
--          2 the owner's name as a holder of a key that is shared or counted (see holders.lua)
-- Returns  1 if there was a lease or a record, and it was the expected one; else 0

--@include value.lua
--@include holders.lua
--@include queue.lua

local now = clock()
local lock = look(now)
if lock.error then
  return lock.error
end

-- Whether the lock is what the caller expects.
local function is_expected(what)
  if not what then
    return true
  elseif lock.kind == 'record' then
    return what == 'record'
  elseif lock.kind == 'exclusive' then
    return what == lock.owner
  end
  return lock.kind and what ~= 'record' and redis.call('ZSCORE', KEYS[1], ARGV[2])
end

if not is_expected(ARGV[1]) then
  return 0
end
prune(now)
redis.call('DEL', KEYS[1])
offer(now, {held = 0}, true)
return lock.kind and 1 or 0
