-- Ends the shared leases or permits of one or more owners, or the attempt of the first owner if that is only queued, and offers the key to the
-- attempts that are next.
--
-- KEYS     1 lock, 2 queue, 3 a name that does not exist
-- ARGV     the holders (see holders.lua)
-- Returns  1 if an owner held a lease until now; else 0
--
-- A slot of a Cluster that is moving to another node refuses scripts with a name that does not exist. The script is then called with the lock
-- alone: the attempts that are next are told nothing, and find out when they ask. Returns the error TRYAGAIN if no owner holds a lease, because
-- the attempt may be queued, or the lease may be exclusive.

local call = redis.call
if not KEYS[2] or call('EXISTS', KEYS[2]) == 0 then
  local ended, now = 0, nil
  for _, holder in ipairs(ARGV) do
    local ends = redis.pcall('ZSCORE', KEYS[1], holder)
    if type(ends) == 'table' then
      ended = nil
      break
    elseif ends then
      call('ZREM', KEYS[1], holder)
      -- A lease that has expired stays in the set while another has not, and counts as none.
      local time = not now and call('TIME')
      now = now or time[1] * 1000 + math.floor(time[2] / 1000)
      -- As in clock, see queue.lua.
      now = now < 100000000000 and now + 100000000000 or now
      ended = ends + 0 > now and 1 or ended
    end
  end
  if KEYS[2] and ended then
    return ended
  elseif not KEYS[2] then
    return ended == 1 and 1 or redis.error_reply('TRYAGAIN the queue is needed for this release')
  end
end

--@include value.lua
--@include holders.lua
--@include queue.lua

local now = clock()
local lock = look(now)
if lock.error then
  return lock.error
end
prune(now)
local attempt = string.match(ARGV[1], '^[^@]+')
leave(attempt)

local ended = 0
if lock.value then
  -- The lease is still exclusive if no renewal has made it a shared one.
  local is_mine = 'shared:' .. lock.owner == attempt
  if lock.kind == 'record' then
    return is_mine and 1 or 0
  elseif not is_mine then
    unmark_unless_queued(lock.value)
    return 0
  end
  ended, lock = call('DEL', KEYS[1]), {held = 0}
elseif lock.kind then
  for _, holder in ipairs(ARGV) do
    ended = math.max(ended, call('ZREM', KEYS[1], holder))
  end
  lock = look(now)
end
offer(now, lock, ended == 1)
return ended
