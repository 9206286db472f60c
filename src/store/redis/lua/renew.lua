-- Extends an owner's lease, and hands out further tokens.
--
-- KEYS     1 lock, 2 queue, 3 fence
-- ARGV     1 the lease's value without its fingerprint, 2 lease in ms, 3 floor of the tokens, 4 the number of further tokens
-- Returns  0, if the owner does not hold the key
--          {1 if others wait, else 0; the last of the further tokens, or 0 for none}

local value = redis.call('GET', KEYS[1])
local others_wait = 0

if value ~= ARGV[1] then
  --@include value.lua
  --@include queue.lua

  local kind, holder = read(value)
  if value and not kind then
    return foreign()
  end
  local _, me = read(ARGV[1])
  if kind ~= 'lease' or holder ~= me then
    return 0
  end
  prune(clock())
  others_wait = head() and 1 or 0
  unmark_unless_queued(value)
end

if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end

local last = 0
--@include fence.lua
--@include floor.lua

-- By pcall, because a full server, which cannot count, must not fail the renewal: the lease goes on without further tokens.
local counted = redis.pcall('INCRBY', KEYS[3], ARGV[4])
if type(counted) == 'number' then
  last = counted
  if last - ARGV[4] < floor + 0 then
    last = raise(last, ARGV[4], floor)
  end
  if last >= 9007199254740992 then
    last = 0
  end
end
return {others_wait, last}
