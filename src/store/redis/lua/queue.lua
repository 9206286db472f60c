-- The queue of a key is one sorted set, which expires with its last place. An attempt is named by its mode and its owner:
--   owner                   wants the key exclusively
--   "shared:" owner         shares the key
--   "permit:" n ":" owner   wants one of n permits, or several
-- An attempt has up to three members:
--   attempt                 the score counts arrivals
--   "until:" attempt        the score is the deadline of the place, in ms of the server's clock
--   "free:" attempt         the score is OFFERS plus the time at which the key was offered to this attempt
--
-- For example, two attempts wait, and the free key was offered to the first:
--   1                <instance>:7
--   2                shared:<instance>:9
--   1731756030000    until:<instance>:7
--   1731756031500    until:shared:<instance>:9
--   101731756000000  free:<instance>:7
--
-- No count of arrivals comes near a clock's number, so the lowest member is the head of the queue. The key is offered to the attempts that
-- are next among the first PAGE ones: the work of a script must not grow with the queue. The attempts behind a page become next as those
-- ahead of them take the key or leave, which makes further offers.
local CLOCKS = 100000000000
local OFFERS = 100000000000000

-- The number of attempts behind the next ones that receive a hint when the key is offered. With four, a live attempt behind
-- k dead ones waits at most 500 ms for each dead one, given a head start of 300 ms and a poll interval of 1 s: with up to four dead
-- attempts, the live one received the hint and asks at the end of each head start; with five or more, k - 1 head starts after the
-- next poll are within that time. The number that PUBLISH returns does not tell dead attempts: a frozen process counts as a
-- subscriber, and a subscriber at another node of a Cluster does not.
local TOLD = 4

-- The number of attempts from the head on that an offer looks at, and that are told of a record.
local PAGE = 16

-- The number of expired places that one call removes. The next call removes more.
local PRUNED = 20

-- The number of expired places that prune has left.
local expired = 0

-- The server's clock in ms. The clock of a server that does not know the time begins in 1970, and is moved to after CLOCKS.
local function clock()
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  return now < CLOCKS and now + CLOCKS or now
end

-- The mode of an attempt: "exclusive"; "shared"; or "permit", and the number of permits.
local function mode_of(attempt)
  local permits = string.match(attempt, '^permit:(%d+):')
  if permits then
    return 'permit', permits + 0
  end
  return string.find(attempt, '^shared:') and 'shared' or 'exclusive'
end

-- The instance in an owner, an attempt or a holder. Its UUID has hyphens, and no other part in front of the owner's number has one.
local function instance_of(name)
  return string.match(name, '(%x+%-[%x-]+):%d+')
end

-- Removes an attempt from the queue. Returns whether the attempt was queued.
local function leave(attempt)
  return redis.call('ZREM', KEYS[2], attempt, 'until:' .. attempt, 'free:' .. attempt) > 0
end

local function kept_until(attempt)
  return tonumber(redis.call('ZSCORE', KEYS[2], 'until:' .. attempt) or 0)
end

local function head()
  return redis.call('ZRANGE', KEYS[2], 0, 0)[1]
end

-- The attempts from a place on, counted from 0.
local function attempts(from, most)
  local some = {}
  for place, member in ipairs(redis.call('ZRANGE', KEYS[2], from, from + most - 1)) do
    if string.find(member, '^until:') then
      break
    end
    some[place] = member
  end
  return some
end

-- Queues an attempt, or extends the deadline of its place. Returns whether the attempt is new.
local function join(attempt, now, keep)
  local new = not redis.call('ZSCORE', KEYS[2], attempt)
  if new then
    local last = redis.call('ZREVRANGEBYSCORE', KEYS[2], CLOCKS, 0, 'WITHSCORES', 'LIMIT', 0, 1)[2]
    redis.call('ZADD', KEYS[2], string.format('%.0f', (last or 0) + 1), attempt)
  end
  redis.call('ZADD', KEYS[2], string.format('%.0f', now + keep), 'until:' .. attempt)
  if redis.call('PTTL', KEYS[2]) < keep then
    redis.call('PEXPIRE', KEYS[2], string.format('%.0f', keep))
  end
  return new
end

-- Publishes a hint for an instance: "free", "next" or "wanted", and the key. By pcall, because a denied PUBLISH must not fail the
-- script, whose earlier writes stay.
local channels, key
local function hint(instance, what)
  if not channels then
    channels, key = string.match(KEYS[1], '^(.-){b%d+}:lock:(.*)$')
    channels = channels .. 'hints:'
  end
  redis.pcall('PUBLISH', channels .. instance, what .. ' ' .. key)
end

-- Removes the attempts whose places have expired. If more of them are left, the attempts that have asked last, which are most likely alive,
-- are told to ask again: that removes the next ones, and an attempt behind many expired ones does not wait for its poll.
local function prune(now)
  local gone = redis.call('ZRANGEBYSCORE', KEYS[2], CLOCKS, string.format('%.0f', now), 'LIMIT', 0, PRUNED)
  if not gone[1] then
    return
  end
  local members = {}
  for _, deadline in ipairs(gone) do
    local attempt = string.sub(deadline, #'until:' + 1)
    members[#members + 1] = deadline
    members[#members + 1] = attempt
    members[#members + 1] = 'free:' .. attempt
  end
  redis.call('ZREM', KEYS[2], unpack(members))
  if gone[PRUNED] then
    expired = redis.call('ZCOUNT', KEYS[2], CLOCKS, string.format('%.0f', now))
  end
  if expired > 0 then
    local kept = redis.call('ZREVRANGEBYSCORE', KEYS[2], OFFERS - 1, string.format('(%.0f', now), 'LIMIT', 0, TOLD)
    for _, deadline in ipairs(kept) do
      hint(instance_of(deadline), 'free')
    end
  end
end

-- Whether attempts of other instances are queued.
local function others_wait(instance)
  for _, attempt in ipairs(attempts(0, 10)) do
    if instance_of(attempt) ~= instance then
      return true
    end
  end
  return false
end

-- The number of leases that there is room for, in a mode, beside `held` leases of others and behind `ahead` attempts, which all share the key
-- or not. `kind` is that of the leases (see look in holders.lua).
local function room_behind(mode, permits, kind, held, ahead, all_share)
  if mode == 'permit' then
    return permits - held - ahead
  elseif mode == 'shared' then
    return kind ~= 'exclusive' and all_share and 1 or 0
  end
  return held + ahead == 0 and 1 or 0
end

-- Offers the key to the attempts of the first page that have become next, each once, and withdraws the offers from those that are not next
-- any more. Returns the place of the last one that is next, and whether there is a new offer. By pcall, because a full server must not fail
-- the script, whose earlier writes stay.
local function update_offers(now, lock)
  local offered = {}
  for _, mark in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], OFFERS, '+inf')) do
    offered[mark] = true
  end
  local last, is_new, all_share = 0, false, true
  for place, attempt in ipairs(attempts(0, PAGE)) do
    if expired > 0 and kept_until(attempt) <= now then
      -- The call that removes the last of them makes the further offers.
      break
    end
    local mode, permits = mode_of(attempt)
    if room_behind(mode, permits, lock.kind, lock.held, place - 1, all_share) > 0 then
      local mark = 'free:' .. attempt
      if not offered[mark] then
        if redis.pcall('ZADD', KEYS[2], string.format('%.0f', OFFERS + now), mark) ~= 1 then
          return last, is_new
        end
        hint(instance_of(attempt), 'free')
        is_new = true
      end
      offered[mark], last = nil, place
    elseif mode ~= 'permit' then
      break
    end
    all_share = all_share and mode == 'shared'
  end
  for mark in pairs(offered) do
    redis.call('ZREM', KEYS[2], mark)
  end
  return last, is_new
end

-- Updates the offers, and sends a hint to the attempts right behind those that are next if there is a new offer, or if a lease has `ended`.
local function offer(now, lock, ended)
  local place, is_new = update_offers(now, lock)
  if ended or is_new then
    for _, behind in ipairs(attempts(place, TOLD)) do
      hint(instance_of(behind), 'next')
    end
  end
end

-- Removes an attempt that has found a record, and tells the attempt that thereby comes into the first page, or to the place of this one: all
-- attempts in the queue learn of the record one page after another.
local function leave_for_record(attempt)
  local place = redis.call('ZRANK', KEYS[2], attempt)
  if place and leave(attempt) then
    local following = attempts(math.max(place, PAGE - 1), 1)[1]
    if following then
      hint(instance_of(following), 'free')
    end
  end
end

-- When the key was offered to an attempt; nil if it was not. After the clock was set back, the offer counts from now on.
local function offered_at(attempt, now)
  local score = redis.call('ZSCORE', KEYS[2], 'free:' .. attempt)
  if not score then
    return nil
  elseif score - OFFERS > now then
    redis.pcall('ZADD', KEYS[2], string.format('%.0f', OFFERS + now), 'free:' .. attempt)
    return now
  end
  return score - OFFERS
end

-- The time until which the head may take the key before an attempt with this head start (nil for none) overtakes the head.
local function untaken_until(attempt, now, head_start)
  local offered = head_start and offered_at(attempt, now)
  if not offered then
    return kept_until(attempt)
  end
  return math.min(offered + head_start, kept_until(attempt))
end

-- Whether the head has left the key untaken for a head start.
local function passed_by(attempt, now, head_start)
  local offered = offered_at(attempt, now)
  return offered and now >= offered + head_start
end

-- Removes the mark "wanted" from a lease without waiting attempts. By pcall, as in offer.
local function unmark_unless_queued(lease)
  if not head() and string.find(lease, '^wanted:') then
    redis.pcall('SET', KEYS[1], (string.gsub(lease, '^wanted:', 'lease:')), 'KEEPTTL')
  end
end
