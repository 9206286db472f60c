-- Ends an owner's exclusive lease, or the attempt of an owner that is only queued, and offers the key to the attempts that are next. A lease
-- that was downgraded meanwhile is ended as a shared one, and is not replaced by a record.
--
-- KEYS     1 lock, 2 queue
-- ARGV     1 the lease's value without its fingerprint
--          2 the record's value, 3 the ms for which the record is kept: both only if a record replaces the lease
-- Returns  1 if the owner held the lease until now, or a record of the owner is there already; else 0
--
-- All commands that can fail come before the writes that matter: an error means that the lease was not ended. By pcall, because the lock is
-- not a string while others share the key.
--
-- Several calls are made by one script (see joint.lua): their locks, and one argument for each, or three if all leave records. The reply is an
-- array. A name costs the server as much as a command, and few calls need their queue, whose name follows from that of the lock: no server of
-- a Cluster is asked for joint scripts, and a server that refuses a name which it was not told gets the call again by itself.

-- The number of calls at keys that others want, or that are not ours, that the script may still make (see joint.lua).
local contended = 4

local function release(KEYS, ARGV)
  -- The owner's lease without the mark "wanted", with or without a fingerprint: no attempt waits for it (see value.lua).
  local lease, value = ARGV[1], redis.pcall('GET', KEYS[1])
  if value == lease or type(value) == 'string' and string.sub(value, 1, #lease + 1) == lease .. ' ' then
    if not ARGV[2] then
      return redis.call('DEL', KEYS[1])
    end
    redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
    return 1
  end

  contended = contended - 1
  if contended < 0 then
    return false
  end
  --@include value.lua
  --@include holders.lua
  --@include queue.lua

  local now = clock()
  local lock = look(now)
  if lock.error then
    return lock.error
  end
  local _, me = read(ARGV[1])
  prune(now)
  leave(me)

  if lock.kind == 'exclusive' and lock.owner == me then
    if ARGV[2] then
      redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
      for _, attempt in ipairs(attempts(0, PAGE)) do
        hint(instance_of(attempt), 'free')
      end
    else
      redis.call('DEL', KEYS[1])
      offer(now, {held = 0}, true)
    end
    return 1
  end

  if lock.kind == 'shared' and not ARGV[2] then
    local ended = redis.call('ZREM', KEYS[1], downgraded(ARGV[1]))
    offer(now, look(now), ended == 1)
    return ended
  elseif lock.kind == 'exclusive' then
    unmark_unless_queued(lock.value)
  elseif lock.kind ~= 'record' then
    offer(now, lock, false)
  end
  return lock.owner == me and 1 or 0
end

-- One call has two names, and one or three arguments.
if #ARGV % #KEYS ~= 0 then
  return release(KEYS, ARGV)
end
local calls, parts = #KEYS, #ARGV / #KEYS
-- Leases that nobody waits for are freed by one command, before any other write: if it fails, nothing was done.
local answers, freed = {}, {}
if parts == 1 then
  for i, value in ipairs(redis.call('MGET', unpack(KEYS, 1, calls))) do
    if value == ARGV[i] then
      freed[#freed + 1] = KEYS[i]
      answers[i] = 1
    end
  end
  if freed[1] then
    redis.call('DEL', unpack(freed))
  end
end
if #freed == calls then
  return answers
end
--@include joint.lua
for i = 1, calls do
  if not answers[i] then
    local queue = string.gsub(KEYS[i], '({b%d+}:)lock:', '%1queue:', 1)
    answers[i] = alone(release, {KEYS[i], queue}, {unpack(ARGV, (i - 1) * parts + 1, i * parts)})
  end
end
return answers
