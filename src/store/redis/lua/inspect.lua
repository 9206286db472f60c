-- Reads the state of a key, with a page of its holders and a page of its queue. Changes nothing.
--
-- KEYS     1 lock, 2 queue, 3 fence
-- ARGV     1 the last holder of the page before, 2 its score, 3 the last attempt of the page before, 4 its score; all of them are empty for
--          the first page
-- Returns  {the lock's value or false, its TTL in ms, the server's clock in ms,
--           the holders of a shared or counted lock, each followed by its score: when its lease ends, in ms of the server's clock,
--           the attempts in the queue, each followed by its score and by the time until which its place is kept,
--           the token counter or false}

--@include queue.lua

-- The number of holders, and of attempts, in one reply: a call must not take the server long. PAGE in questions.rs.
local LISTED = 25

-- The members behind the last one of the page before. If that one has left or moved, all members from its score on follow: members only
-- move towards the end of their set, so none is missed, and some are there twice.
local function page(name, last, score)
  local from = 0
  if last ~= '' then
    local is_there = redis.call('ZSCORE', name, last) == score
    from = is_there and redis.call('ZRANK', name, last) + 1 or redis.call('ZCOUNT', name, '-inf', '(' .. score)
  end
  return redis.call('ZRANGE', name, from, from + LISTED - 1, 'WITHSCORES')
end

local value, holders, waiting = redis.pcall('GET', KEYS[1]), {}, {}
if type(value) == 'table' then
  if type(redis.pcall('ZCARD', KEYS[1])) == 'table' then
    return value
  end
  value, holders = false, page(KEYS[1], ARGV[1], ARGV[2])
end
local places = page(KEYS[2], ARGV[3], ARGV[4])
for place = 1, #places, 2 do
  local attempt, score = places[place], places[place + 1]
  if score + 0 >= CLOCKS then
    break
  end
  waiting[#waiting + 1] = attempt
  waiting[#waiting + 1] = score
  waiting[#waiting + 1] = redis.call('ZSCORE', KEYS[2], 'until:' .. attempt) or '0'
end
return {value, redis.call('PTTL', KEYS[1]), clock(), holders, waiting, redis.call('GET', KEYS[3])}
