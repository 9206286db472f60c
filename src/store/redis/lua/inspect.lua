-- Reads the state of a key, with a page of its holders and a page of its queue. Changes nothing.
--
-- KEYS     1 lock, 2 queue, 3 fence
-- ARGV     where the page before ended; nothing for the first page
-- Returns  {the lock's value or false, its TTL in ms, the server's clock in ms,
--           the holders of a shared or counted lock, each followed by its score: when its lease ends, in ms of the server's clock,
--           the attempts in the queue, each followed by the time until which its place is kept,
--           the token counter or false,
--           the arguments for the next page, or false if there is none}

--@include queue.lua

-- The number of holders, and of attempts, in one reply: a call must not take the server long. PAGE in questions.rs.
local LISTED = 25

-- Where this page ends: the last holder and its score, and the last member of the queue and its score.
local ends = {ARGV[1] or '', ARGV[2] or '', ARGV[3] or '', ARGV[4] or ''}

-- The members behind the last one of the page before. If that one has left or moved, all members from its score on follow: members only
-- move towards the end of their set, so none is missed, and some are there twice.
local function page(name, place)
  local last, score, from = ends[place], ends[place + 1], 0
  if last ~= '' then
    local is_there = redis.call('ZSCORE', name, last) == score
    from = is_there and redis.call('ZRANK', name, last) + 1 or redis.call('ZCOUNT', name, '-inf', '(' .. score)
  end
  local members = redis.call('ZRANGE', name, from, from + LISTED - 1, 'WITHSCORES')
  if members[1] then
    ends[place], ends[place + 1] = members[#members - 1], members[#members]
  end
  return members
end

local value, holders, waiting = redis.pcall('GET', KEYS[1]), {}, {}
if type(value) == 'table' then
  if type(redis.pcall('ZCARD', KEYS[1])) == 'table' then
    return value
  end
  value = false
  -- The lock may have got another kind of holder since the first page, on which there was none.
  if not ARGV[1] or ARGV[1] ~= '' then
    holders = page(KEYS[1], 1)
  end
elseif ARGV[1] then
  value = false
end
local places = page(KEYS[2], 3)
for place = 1, #places, 2 do
  local attempt = places[place]
  if places[place + 1] + 0 >= CLOCKS then
    break
  end
  waiting[#waiting + 1] = attempt
  waiting[#waiting + 1] = redis.call('ZSCORE', KEYS[2], 'until:' .. attempt) or '0'
end
local goes_on = #holders == 2 * LISTED or #waiting == 2 * LISTED
return {value, redis.call('PTTL', KEYS[1]), clock(), holders, waiting, redis.call('GET', KEYS[3]), goes_on and ends}
