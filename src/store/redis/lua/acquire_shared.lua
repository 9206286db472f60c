-- Takes a key for an owner that shares the key, or takes permits for one or more owners, if there is room and the attempt is next.
--
-- KEYS     as in acquire.lua
-- ARGV     1 the holder (see holders.lua), 2 to 4 as in acquire.lua
--          5 the number of tokens, if more than one, or if holders follow
--          6 and on: further holders, for permits
-- Returns  as acquire.lua. The third value of "granted" is the number of holders that were granted a lease, from the first on.
--
-- All commands that can fail come before the writes that matter: an error means that no lease was granted. The branches for a free key, and
-- for a key with holders and without a queue, are short.

local call, lock, holder = redis.call, KEYS[1], ARGV[1]
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- As in clock, see queue.lua.
now = now < 100000000000 and now + 100000000000 or now
local ends = now + ARGV[2]
-- The number of leases to be granted, and when the last of the present leases ends.
local count, latest = math.max(#ARGV - 4, 1), 0
local is_contended, is_wanted, was_exclusive

local found = call('EXISTS', lock, KEYS[2])
if found == 0 and count > 1 then
  count = math.min(count, string.match(holder, '^permit:(%d+):') + 0)
elseif found ~= 0 then
  -- A lock that exists alone has no queue. Leases that have expired take room here, and give it back in the longer branch, which also ends
  -- other owners.
  local is_short = found == 1 and not string.find(ARGV[4], ';', 1, true)
  local last = is_short and redis.pcall('ZRANGE', lock, -1, -1, 'WITHSCORES') or {}
  local has_room = last[1] and string.sub(last[1], 1, 7) == string.sub(holder, 1, 7)
  if has_room then
    local permits = string.match(holder, '^permit:(%d+):')
    has_room = not permits or call('ZCARD', lock) + count <= permits + 0
    latest = last[2] + 0
  end
  if not has_room then
    --@include value.lua
    --@include holders.lua
    --@include queue.lua
    --@include contend.lua

    local attempt = string.match(holder, '^[^@]+')
    local answer, granted, before, by_others = contend(attempt, {holder, unpack(ARGV, 6)}, ARGV[4], now)
    if answer then
      return answer
    end
    is_contended, count, is_wanted = true, granted, by_others
    was_exclusive = before.kind == 'exclusive'
    latest = before.kind and now + call('PTTL', lock) or 0
  end
end

--@include tokens.lua
if was_exclusive then
  -- The owner's own lease, which the next renewal makes a shared one.
  call('PEXPIRE', lock, ARGV[2])
else
  local further = {}
  for place = 6, 4 + count do
    further[#further + 1] = ends
    further[#further + 1] = ARGV[place]
  end
  call('ZADD', lock, ends, holder, unpack(further))
  if ends > latest then
    call('PEXPIRE', lock, ARGV[2])
  end
end
if is_contended or ARGV[5] then
  return {'granted', last, count, is_wanted and 1 or 0, tokens}
end
return last
