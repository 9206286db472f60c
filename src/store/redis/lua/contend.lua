-- An attempt at a key that is held or has a queue. Needs value.lua, holders.lua and queue.lua.

-- The number of holders that are told that an attempt waits.
local HOLDERS_TOLD = 100

-- The number of attempts ahead of this one in the queue: all of them if this one is not queued. Expired places that are left do not count for
-- an attempt that is not queued; one that is queued asks again until they are removed.
local function ahead_of(attempt)
  return redis.call('ZRANK', KEYS[2], attempt) or redis.call('ZCOUNT', KEYS[2], 0, CLOCKS) - expired
end

-- Whether the first attempts in the queue all share the key. More of them than a page, or some among expired ones, count as if one did not: an
-- attempt behind them waits for its offer.
local function all_share(number)
  if number == 0 then
    return true
  elseif number > PAGE or expired > 0 then
    return false
  end
  for _, attempt in ipairs(attempts(0, number)) do
    if mode_of(attempt) ~= 'shared' then
      return false
    end
  end
  return true
end

-- The number of leases that there is room for, beside `held` leases of others and behind the attempts ahead in the queue, unless those are
-- skipped. The queue is read only if its order matters.
local function room_for(attempt, held, lock, skips)
  local mode, permits = mode_of(attempt)
  local room = room_behind(mode, permits, lock.kind, held, 0, true)
  if room <= 0 or skips then
    return room
  end
  local ahead = ahead_of(attempt)
  return room_behind(mode, permits, lock.kind, held, ahead, mode ~= 'shared' or all_share(ahead))
end

-- The error for an attempt at a lock if the key is used for permits, and the other way round; nil if the attempt is of the right kind.
local function wrong_kind(attempt, lock, now)
  local first, second = unpack(attempts(0, 2))
  local queued = first ~= attempt and first or second
  local is_waiting = queued and (expired == 0 or kept_until(queued) > now)
  local other = lock.kind or mode_of(is_waiting and queued or attempt)
  local has_permits, is_permit = other == 'permit', mode_of(attempt) == 'permit'
  if has_permits and not is_permit then
    return redis.error_reply('TDLPERMITS permits of this key are held')
  elseif is_permit and not has_permits then
    return redis.error_reply('TDLLOCKS the key is locked')
  end
end

-- Tells the holders that an attempt waits, except the attempt's own instance. Of a key that is shared or counted, the holders are told of the
-- first two attempts: an instance has one attempt, so every holder knows of an attempt that is not its own.
local function tell_holders(attempt, lock)
  local told = {[instance_of(attempt)] = true}
  local holders = {lock.owner}
  if lock.kind == 'exclusive' then
    redis.call('SET', KEYS[1], wanted(lock.value), 'KEEPTTL')
  elseif lock.kind and not attempts(2, 1)[1] then
    holders = redis.call('ZRANGE', KEYS[1], 0, HOLDERS_TOLD - 1)
  end
  for _, holder in ipairs(holders) do
    local instance = instance_of(holder)
    if not told[instance] then
      told[instance] = true
      hint(instance, 'wanted')
    end
  end
end

-- Handles an attempt that is not granted the key: queues the attempt, or removes its place. Returns the reply.
local function hold_off(attempt, lock, queueing, now)
  local keep, head_start = string.match(queueing, '^(%d+) (%d+)$')
  if keep then
    if join(attempt, now, keep + 0) then
      tell_holders(attempt, lock)
    end
  elseif queueing == 'no' and leave(attempt) and lock.kind == 'exclusive' then
    unmark_unless_queued(lock.value)
  end
  if lock.kind == 'exclusive' then
    return {'held', redis.call('PTTL', KEYS[1]), lock.content, lock.label}
  end
  offer(now, lock, false)
  local first = head()
  local ask_again = lock.ends
  if first and (not ask_again or expired > 0 or redis.call('ZSCORE', KEYS[2], 'free:' .. first)) then
    ask_again = math.min(ask_again or math.huge, untaken_until(first, now, head_start))
  end
  return {'held', math.max((ask_again or now) - now, 0), false, lock.label or false}
end

-- Ends owners as releases do: their leases, in whatever mode, and their places in the queue. `names` are those of their attempts, each after a
-- semicolon. Returns the lock as it is then. The counter of the tokens comes first: a server that cannot count fails before the key is free.
local function end_all(names, lock, now)
  redis.call('INCRBY', KEYS[3], 0)
  local label, ended = string.match(ARGV[1], '^[^ @]+(@[^ ]+)') or '', false
  for name in string.gmatch(names, '[^;]+') do
    leave(name)
    if lock.value then
      if lock.kind == 'exclusive' and lock.owner == string.match(name, '[^:]+:%d+$') then
        redis.call('DEL', KEYS[1])
        lock, ended = {held = 0}, true
      end
    elseif lock.kind then
      local holder = mode_of(name) == 'exclusive' and 'shared:' .. name or name
      ended = redis.call('ZREM', KEYS[1], holder .. label) == 1 or ended
    end
  end
  if lock.kind == 'exclusive' then
    unmark_unless_queued(lock.value)
  elseif lock.kind ~= 'record' then
    lock = look(now)
    offer(now, lock, ended)
  end
  return lock
end

-- Asks for the key, for an attempt and for its holders, which is how the leases of a shared or counted key are named. Returns the reply, if
-- the key is not granted; or nil, the number of leases to be granted, the lock (see look), and whether others wait. The attempt has left the
-- queue then.
local function contend(attempt, holders, queueing, now)
  local lock = look(now)
  if lock.error then
    return lock.error
  end
  prune(now)
  local ends
  queueing, ends = string.match(queueing, '^([^;]+)(.*)$')
  if ends ~= '' then
    lock = end_all(ends, lock, now)
  end
  if lock.kind == 'record' then
    leave_for_record(attempt)
    return {'record', lock.content}
  end
  local wrong = wrong_kind(attempt, lock, now)
  if wrong then
    leave(attempt)
    return wrong
  end

  local ours = 0
  if lock.kind == 'exclusive' then
    ours = string.match(attempt, '[^:]+:%d+$') == lock.owner and 1 or 0
  elseif lock.kind then
    for _, holder in ipairs(holders) do
      ours = ours + (redis.call('ZSCORE', KEYS[1], holder) and 1 or 0)
    end
  end
  local held = lock.held - ours
  local function room()
    local left = room_for(attempt, held, lock, queueing == 'skip')
    return math.min(math.max(left, ours), math.max(#holders, 1))
  end
  local count = room()
  local head_start = string.match(queueing, '^%d+ (%d+)$')
  if count == 0 and head_start and lock.kind ~= 'exclusive' then
    -- All heads that have left the key untaken lose their places at once: a page of dead attempts delays the next page once.
    local first = head()
    while first and first ~= attempt and passed_by(first, now, head_start + 0) do
      leave(first)
      first = head()
    end
    count = room()
  end
  if count == 0 then
    return hold_off(attempt, lock, queueing, now)
  end

  leave(attempt)
  update_offers(now, {kind = lock.kind or mode_of(attempt), held = held + count})
  return nil, count, lock, others_wait(instance_of(attempt))
end
