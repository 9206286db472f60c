-- Extends an owner's shared lease or permit, and hands out further tokens. Makes an exclusive lease a shared one.
--
-- KEYS     1 lock, 2 queue, 3 fence, 4 a name that does not exist
-- ARGV     1 the holder (see holders.lua), 2 lease in ms, 3 floor of the tokens, 4 the number of further tokens, or 0
-- Returns  0, if the owner does not hold the key
--          {1 if others wait, else 0; the last of the further tokens, or 0 for none; the number of further tokens}
--
-- A slot of a Cluster that is moving to another node refuses scripts with a name that does not exist. The script relies on that: in such a
-- slot, a lock that is deleted cannot be written again. The script is then called with the lock alone, and with the first two arguments. No tokens are handed
-- out, an exclusive lease stays one until a later renewal, and the attempts that wait are told nothing.

--@include value.lua
--@include holders.lua
--@include queue.lua

local holder, lease = ARGV[1], tonumber(ARGV[2])
local now = clock()
local lock = look(now)
if lock.error then
  return lock.error
end
local is_downgraded
if lock.kind == 'exclusive' and 'shared:' .. lock.owner == string.match(holder, '^[^@]+') then
  local left = redis.call('PTTL', KEYS[1])
  -- A lease with a fingerprint stays exclusive.
  is_downgraded = KEYS[4] and not lock.content
  if is_downgraded then
    lease = string.format('%.0f', math.max(left, lease))
    redis.call('DEL', KEYS[1])
    redis.call('ZADD', KEYS[1], string.format('%.0f', now + lease), holder)
    redis.call('PEXPIRE', KEYS[1], lease)
  elseif left < lease then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
  end
elseif not lock.kind or lock.value or not extend(holder, lease, now) then
  return 0
end
if not KEYS[2] then
  return {0, 0, 0}
end

prune(now)
if is_downgraded then
  offer(now, {kind = 'shared', held = 1}, true)
end
local is_wanted = others_wait(instance_of(holder)) and 1 or 0
if ARGV[4] == '0' then
  return {is_wanted, 0, 0}
end
--@include refill.lua
return {is_wanted, refill()}
