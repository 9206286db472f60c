-- Takes a key for an owner, if the key is free and the owner is next.
--
-- KEYS     1 lock, 2 queue, 3 fence
-- ARGV     1 the lease's value (see value.lua)
--          2 lease in ms, 3 floor of the tokens
--          4 "<ms that a place in the queue is kept> <head start in ms>", to queue if the key is held;
--            or "no", not to queue; or "skip", to ignore the queue
--          5 the number of tokens, if more than one
-- Returns  the last token, if the key is granted and no attempt waits
--          {"granted", last token}, if the key is granted and others wait
--          {"held", ms until it is worth asking again, the holder's fingerprint or false, the holder's label or false}
--          {"record", content}
--
-- All commands that can fail come before the writes that matter: an error means that the key was not taken. The branch for a free key
-- without a queue is short, because the whole fleet shares the server's time.

local call, lock, value = redis.call, KEYS[1], ARGV[1]
local others_wait

if call('EXISTS', lock, KEYS[2]) ~= 0 then
  --@include value.lua
  --@include queue.lua

  local found = call('GET', lock)
  local kind, holder, content, label = read(found)
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

  local keep, head_start = string.match(ARGV[4], '^(%d+) (%d+)$')
  if found and holder ~= me then
    if keep and join(me, now, keep + 0) then
      call('SET', lock, wanted(found), 'KEEPTTL')
      hint(holder, 'wanted')
    elseif ARGV[4] == 'no' and leave(me) then
      unmark_unless_queued(found)
    end
    return {'held', call('PTTL', lock), content, label}
  end

  if not found and ARGV[4] ~= 'skip' then
    local first = head()
    while keep and first and first ~= me and passed_by(first, now, head_start + 0) do
      leave(first)
      first = head()
    end
    if first and first ~= me then
      if keep then
        join(me, now, keep + 0)
        offer(now)
      else
        leave(me)
      end
      return {'held', untaken_until(first, head_start) - now, false, false}
    end
  end

  leave(me)
  local first = head()
  if first then
    withdraw_offer(first)
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
