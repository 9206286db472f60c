-- Prolongs an owner's lease, without further tokens and without a look at the queue: with one key alone, because a slot of
-- a Cluster that is on its way to another node refuses scripts with more.
--
-- KEYS     1 lock
-- ARGV     1 the lease's value without its fingerprint, 2 lease in ms
-- Returns  0, when the owner does not hold the key
--          {1 if others wait or have waited or else 0, 0}
--
-- A mark that is out of date (see value.lua) costs the holder one release more than necessary, and no more: a lease that
-- is granted when nobody waits has no mark.

local value = redis.call('GET', KEYS[1])
local others_wait = 0

if value ~= ARGV[1] then
  --@include value.lua

  local kind, holder, _, _, is_wanted = read(value)
  if value and not kind then
    return foreign()
  end
  local _, me = read(ARGV[1])
  if kind ~= 'lease' or holder ~= me then
    return 0
  end
  others_wait = is_wanted and 1 or 0
end

if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return {others_wait, 0}
