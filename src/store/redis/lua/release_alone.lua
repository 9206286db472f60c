-- Ends an exclusive lease that no other attempt waits for, without the queue. A lease that was downgraded meanwhile is ended as a shared one:
-- the attempts that are next are told nothing, and find out when they ask. Used in a slot of a Cluster that is moving to another node: there, a
-- script with one key runs on the node that has the key, and a script with several keys is refused.
--
-- KEYS     1 lock
-- ARGV     as in release.lua
-- Returns  1; or the error TRYAGAIN, if only release.lua can end the lease

local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' and not ARGV[2] then
  --@include value.lua
  --@include holders.lua
  --@include queue.lua
  local lock = look(clock())
  if lock.kind == 'shared' and redis.call('ZREM', KEYS[1], downgraded(ARGV[1])) == 1 then
    return 1
  end
end
local is_mine = type(value) == 'string' and (value == ARGV[1] or string.sub(value, 1, #ARGV[1] + 1) == ARGV[1] .. ' ')
if not is_mine then
  return redis.error_reply('TRYAGAIN the queue is needed for this release')
end
if ARGV[2] then
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
else
  redis.call('DEL', KEYS[1])
end
return 1
