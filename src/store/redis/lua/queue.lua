-- The queue of a key is one sorted set, which expires with its last place. It has two members for each attempt:
--   owner          at a number that counts arrivals
--   "until:" owner at the deadline of its place, in ms of the server's clock
-- No count of arrivals comes near a clock's number, so the lowest member is the first in the queue.
local CLOCKS = 100000000000

local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function leave(owner)
  redis.call('ZREM', KEYS[2], owner, 'until:' .. owner)
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
