-- Extends an owner's exclusive lease, without further tokens and without the queue. A lease that was downgraded meanwhile is extended as a
-- shared one; whether others wait for it is not known then, and the answer is that they do. Used if no tokens are wanted; and in a slot of a Cluster
-- that is moving to another node, which refuses scripts with several keys.
--
-- KEYS     1 lock
-- ARGV     1 the lease's value without its fingerprint, 2 lease in ms
-- Returns  0, if the owner does not hold the key
--          {1 if others wait or have waited, else 0; 0, 0 for no tokens}
--
-- An outdated mark (see value.lua) costs the holder at most one unnecessary release, because a lease that is granted without waiting
-- attempts has no mark.
--
-- Several calls are made by one script: their locks, and two arguments for each. The reply is an array (see joint.lua).

local function renew(KEYS, ARGV, value)
  value = value or redis.pcall('GET', KEYS[1])
  local is_marked = 0

  if value ~= ARGV[1] then
    --@include value.lua
    --@include holders.lua

    if type(value) == 'table' then
      --@include queue.lua
      -- The key is shared, or another program wrote the lock.
      local first = redis.pcall('ZRANGE', KEYS[1], 0, 0)[1]
      if not first or not read_holder(first) then
        return first and foreign() or value
      end
      return extend(downgraded(ARGV[1]), tonumber(ARGV[2]), clock()) and {1, 0, 0} or 0
    end
    local kind, holder, _, _, is_wanted = read(value)
    if value and not kind then
      return foreign()
    end
    local _, me = read(ARGV[1])
    if kind ~= 'lease' or holder ~= me then
      return 0
    end
    is_marked = is_wanted and 1 or 0
  end

  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
  end
  return {is_marked, 0, 0}
end

local calls = #KEYS
if calls == 1 then
  return renew(KEYS, ARGV)
end
--@include joint.lua
local answers = {}
for i, value in ipairs(redis.call('MGET', unpack(KEYS))) do
  local lease = ARGV[2 * i - 1]
  answers[i] = alone(renew, {KEYS[i]}, {lease, ARGV[2 * i]}, value == lease and value)
end
return answers
