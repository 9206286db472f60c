-- Extends an owner's exclusive lease, and hands out further tokens. A lease that was downgraded meanwhile is extended as a shared one.
--
-- KEYS     1 lock, 2 queue, 3 fence
-- ARGV     1 the lease's value without its fingerprint, 2 lease in ms, 3 floor of the tokens, 4 the number of further tokens
-- Returns  0, if the owner does not hold the key
--          {1 if others wait, else 0; the last of the further tokens, or 0 for none; the number of further tokens}

local value = redis.pcall('GET', KEYS[1])
local is_wanted, is_shared = 0, false

if value ~= ARGV[1] then
  --@include value.lua
  --@include holders.lua
  --@include queue.lua

  local now = clock()
  local lock = look(now)
  if lock.error then
    return lock.error
  end
  local _, me = read(ARGV[1])
  is_shared = lock.kind == 'shared' and extend(downgraded(ARGV[1]), tonumber(ARGV[2]), now)
  if not is_shared and (lock.kind ~= 'exclusive' or lock.owner ~= me) then
    return 0
  end
  prune(now)
  is_wanted = others_wait(instance_of(me)) and 1 or 0
  if not is_shared then
    unmark_unless_queued(value)
  end
end

if not is_shared and redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
--@include refill.lua
return {is_wanted, refill()}
