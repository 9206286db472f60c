-- The queue of a key is one sorted set, which expires with its last place. An attempt has up to three members:
--   owner          the score counts arrivals
--   "until:" owner the score is the deadline of the place, in ms of the server's clock
--   "free:" owner  the score is OFFERS plus the time at which the key was offered to this attempt. Only the head of the queue has
--                  this member, and only while the key is free.
--
-- For example, two attempts wait, and the free key was offered to the first:
--   1                <instance>:7
--   2                <instance>:9
--   1731756030000    until:<instance>:7
--   1731756031500    until:<instance>:9
--   101731756000000  free:<instance>:7
--
-- No count of arrivals comes near a clock's number, so the lowest member is the head of the queue. The names "shared:" owner and
-- "permits:" owner are reserved for attempts that do not want the key for themselves alone.
local CLOCKS = 100000000000
local OFFERS = 100000000000000

-- The number of attempts behind the head that receive a hint when the key is offered to the head. With four, a live attempt behind
-- k dead ones waits at most 500 ms for each dead one, given a head start of 300 ms and a poll interval of 1 s: with up to four dead
-- attempts, the live one received the hint and asks at the end of each head start; with five or more, k - 1 head starts after the
-- next poll are within that time. The number that PUBLISH returns does not tell dead attempts: a frozen process counts as a
-- subscriber, and a subscriber at another node of a Cluster does not.
local TOLD = 4

-- The server's clock in ms.
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Removes an owner from the queue. Returns whether the owner was queued.
local function leave(owner)
  return redis.call('ZREM', KEYS[2], owner, 'until:' .. owner, 'free:' .. owner) > 0
end

-- Removes the owners whose places have expired.
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

-- Queues an owner, or extends the deadline of its place. Returns whether the owner is new.
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

-- Publishes a hint for an owner's instance: "free", "next" or "wanted", and the key. By pcall, because a denied PUBLISH must not fail the
-- script, whose earlier writes stay.
local function hint(owner, what)
  local prefix, key = string.match(KEYS[1], '^(.-){b%d+}:lock:(.*)$')
  local instance = string.match(owner, '^[^:]+')
  redis.pcall('PUBLISH', prefix .. 'hints:' .. instance, what .. ' ' .. key)
end

-- Offers the free key to the head of the queue, once, and sends a hint to the attempts behind the head. By pcall, because a full server
-- must not fail the script, whose earlier writes stay.
local function offer(now)
  local first = redis.call('ZRANGEBYSCORE', KEYS[2], 0, CLOCKS, 'LIMIT', 0, 1 + TOLD)
  if not first[1] or redis.pcall('ZADD', KEYS[2], 'NX', string.format('%.0f', OFFERS + now), 'free:' .. first[1]) == 0 then
    return
  end
  for place, owner in ipairs(first) do
    hint(owner, place == 1 and 'free' or 'next')
  end
end

-- The time until which the head may take the free key before an attempt with this head start (nil for none) overtakes the head.
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

-- Withdraws the offer from the head, after the key was granted to another attempt.
local function withdraw_offer(owner)
  redis.call('ZREM', KEYS[2], 'free:' .. owner)
end

-- Removes the mark "wanted" from a lease without waiting attempts. By pcall, as in offer.
local function unmark_unless_queued(lease)
  if not head() and string.find(lease, '^wanted:') then
    redis.pcall('SET', KEYS[1], (string.gsub(lease, '^wanted:', 'lease:')), 'KEEPTTL')
  end
end
