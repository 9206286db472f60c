-- The queue of a key is one sorted set, which expires with its last place. An attempt has up to three members:
--   owner          at a number that counts arrivals
--   "until:" owner at the deadline of its place, in ms of the server's clock
--   "free:" owner  at OFFERS and the time since when the key is free for this attempt. Only the head of a free key's
--                  queue has it, from the moment at which it was told so.
-- No count of arrivals comes near a clock's number, so the lowest member is the first in the queue. An attempt with these
-- members alone wants the key for itself; "shared:" owner and "permits:" owner are kept for attempts that do not.
local CLOCKS = 100000000000
local OFFERS = 100000000000000

-- How many attempts behind the head are told when the head is offered the key. With four of them, a live attempt
-- behind k dead ones waits for at most 500 ms for each, given a head start of 300 ms and a poll interval of 1 s: up to
-- four dead ones it was told, and asks at the end of each head start; from five on, k - 1 head starts after its next
-- poll are within that time. The count that PUBLISH returns would not tell who is dead: a process that is frozen counts,
-- and a subscriber at another node of a Cluster does not.
local TOLD = 4

local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Says whether the owner was queued.
local function leave(owner)
  return redis.call('ZREM', KEYS[2], owner, 'until:' .. owner, 'free:' .. owner) > 0
end

local function prune(now)
  local gone = redis.call('ZRANGEBYSCORE', KEYS[2], CLOCKS, string.format('%.0f', now))
  for _, deadline in ipairs(gone) do
    leave(string.sub(deadline, #'until:' + 1))
  end
end

local function kept_until(owner)
  return tonumber(redis.call('ZSCORE', KEYS[2], 'until:' .. owner) or 0)
end

local function head()
  return redis.call('ZRANGE', KEYS[2], 0, 0)[1]
end

-- Queues an owner, or refreshes its deadline. Says whether it is new.
local function join(owner, now, keep)
  local new = not redis.call('ZSCORE', KEYS[2], owner)
  if new then
    local last = redis.call('ZREVRANGEBYSCORE', KEYS[2], CLOCKS, 0, 'WITHSCORES', 'LIMIT', 0, 1)[2]
    redis.call('ZADD', KEYS[2], string.format('%.0f', (last or 0) + 1), owner)
  end
  redis.call('ZADD', KEYS[2], string.format('%.0f', now + keep), 'until:' .. owner)
  if redis.call('PTTL', KEYS[2]) < keep then
    redis.call('PEXPIRE', KEYS[2], string.format('%.0f', keep))
  end
  return new
end

-- Tells an owner's instance something about the key. By pcall: a denied PUBLISH must not fail what went before it.
local function hint(owner, what)
  local prefix, key = string.match(KEYS[1], '^(.-){b%d+}:lock:(.*)$')
  local instance = string.match(owner, '^[^:]+')
  redis.pcall('PUBLISH', prefix .. 'hints:' .. instance, what .. ' ' .. key)
end

-- The key is free: offers it to the head of the queue, once, and tells those behind the head. By pcall: a server that is
-- full must not fail what went before it.
local function offer(now)
  local first = redis.call('ZRANGEBYSCORE', KEYS[2], 0, CLOCKS, 'LIMIT', 0, 1 + TOLD)
  if not first[1] or redis.pcall('ZADD', KEYS[2], 'NX', string.format('%.0f', OFFERS + now), 'free:' .. first[1]) == 0 then
    return
  end
  for place, owner in ipairs(first) do
    hint(owner, place == 1 and 'free' or 'next')
  end
end

-- Until when the head may take the free key before an attempt with this head start (nil for none) passes it by.
local function untaken_until(owner, head_start)
  local offered = redis.call('ZSCORE', KEYS[2], 'free:' .. owner)
  if not offered or not head_start then
    return kept_until(owner)
  end
  return math.min(offered - OFFERS + head_start, kept_until(owner))
end

-- Whether the head has left the free key untaken for a head start.
local function passed_by(owner, now, head_start)
  local offered = redis.call('ZSCORE', KEYS[2], 'free:' .. owner)
  return offered and now >= offered - OFFERS + head_start
end

-- The key was granted to another than its head.
local function withdraw_offer(owner)
  redis.call('ZREM', KEYS[2], 'free:' .. owner)
end

-- Takes the mark off a lease that nobody waits for any more. By pcall, as above.
local function unmark_unless_queued(lease)
  if not head() and string.find(lease, '^wanted:') then
    redis.pcall('SET', KEYS[1], (string.gsub(lease, '^wanted:', 'lease:')), 'KEEPTTL')
  end
end
