-- Takes a key for an owner, if it is free and it is this owner's turn.
--
-- KEYS     1 lock, 2 queue, 3 fence
-- ARGV     1 the lease's value: "lease:" owner, and after a space the note if there is one
--          2 lease in ms, 3 floor of the tokens
--          4 for how many ms a place in the queue is kept; or "no", not to queue; or "skip", to pass the queue by
--          5 tokens wanted, if more than one
-- Returns  the last token, when granted and nobody waits
--          {"granted", last token}, when granted and others wait
--          {"held", ms until it is worth asking again, the holder's note or false}
--          {"record", content}
--
-- Whatever can fail comes before the writes that matter: an error means that nothing was taken. The way of a key that is
-- free and that nobody waits for is short, and every word of it counts: all of the fleet shares the server's time.

local call, lock, value = redis.call, KEYS[1], ARGV[1]
local others_wait

if call('EXISTS', lock, KEYS[2]) ~= 0 then
  --@include value.lua
  --@include queue.lua

  local found = call('GET', lock)
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

  local first = ARGV[4] ~= 'skip' and head()
  local blocked_by_holder = found and holder ~= me
  if blocked_by_holder or not found and first and first ~= me then
    local keep = tonumber(ARGV[4])
    if keep and join(me, now, keep) and found then
      call('SET', lock, wanted(found), 'KEEPTTL')
      hint(holder, 'wanted')
    end
    if blocked_by_holder then
      return {'held', call('PTTL', lock), content}
    end
    return {'held', kept_until(first) - now, false}
  end

  leave(me)
  if head() then
    others_wait = true
    value = wanted(value)
  end
end

local last, block = nil, ARGV[5]
if block then
  last = call('INCRBY', KEYS[3], block)
else
  last, block = call('INCR', KEYS[3]), 1
end
--@include floor.lua
if last - block < floor + 0 then
  --@include fence.lua
  last = raise(last, block, floor)
end
if last >= 9007199254740992 then
  return redis.error_reply('TDLFOREIGN the token counter has run out of numbers')
end
call('PSETEX', lock, ARGV[2], value)
if others_wait then
  return {'granted', last}
end
return last
