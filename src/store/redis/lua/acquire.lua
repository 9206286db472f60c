-- Takes a key for an owner, if it is free and it is this owner's turn.
--
-- KEYS     1 lock, 2 queue, 3 fence
-- ARGV     1 the lease's value: "lease:" owner, and after a space the note if there is one
--          2 lease in ms, 3 tokens wanted, 4 floor of the tokens
--          5 for how many ms a place in the queue is kept; or "no", not to queue; or "skip", to pass the queue by
-- Returns  the last token, when granted and nobody waits
--          {"granted", last token}, when granted and others wait
--          {"held", ms until it is worth asking again, the holder's note or false}
--          {"record", content}
--
-- Whatever can fail comes before the writes that matter: an error means that nothing was taken.

local value = ARGV[1]
local others_wait = false

if redis.call('EXISTS', KEYS[1], KEYS[2]) > 0 then
  --@include value.lua
  --@include queue.lua

  local found = redis.call('GET', KEYS[1])
  local kind, holder, content = read(found)
  if found and not kind then
    return foreign()
  end
  local _, me = read(value)
  local now = clock()
  prune(now)

  if kind == 'record' then
    leave(me)
    return {'record', content}
  end

  local first = ARGV[5] ~= 'skip' and head()
  local blocked_by_holder = found and holder ~= me
  if blocked_by_holder or not found and first and first ~= me then
    local keep = tonumber(ARGV[5])
    if keep and join(me, now, keep) and found then
      redis.call('SET', KEYS[1], wanted(found), 'KEEPTTL')
      hint(holder, 'wanted')
    end
    if blocked_by_holder then
      return {'held', redis.call('PTTL', KEYS[1]), content}
    end
    return {'held', kept_until(first) - now, false}
  end

  leave(me)
  if head() then
    others_wait = true
    value = wanted(value)
  end
end

local last = redis.call('INCRBY', KEYS[3], ARGV[3])
if last - ARGV[3] < tonumber(ARGV[4]) then
  --@include fence.lua
  last = raise(last, ARGV[3], ARGV[4])
end
if last >= 9007199254740992 then
  return redis.error_reply('TDLFOREIGN the token counter has run out of numbers')
end
redis.call('SET', KEYS[1], value, 'PX', ARGV[2])
if others_wait then
  return {'granted', last}
end
return last
