-- Takes a key exclusively for an owner, if the key is free and the owner is next. (acquire_shared.lua is for the other modes.)
--
-- KEYS     1 lock, 2 queue, 3 fence, and with owners that are ended first, 4 a name that does not exist: while a slot of a Cluster moves,
--          a name that is deleted cannot be written again in the same step, so no such script runs then
-- ARGV     1 the lease's value (see value.lua)
--          2 lease in ms, 3 floor of the tokens
--          4 "<ms that a place in the queue is kept> <head start in ms>", to queue if the key is held;
--            or "no", not to queue; or "skip", to ignore the queue;
--            followed by ";<attempt>" for each owner that is ended first, if there are any (see end_all in contend.lua)
--          5 the number of tokens, if more than one
-- Returns  the last token, if the key is granted with all of the tokens and no attempt waits
--          {"granted", last token, 1, 1 if attempts of other instances wait, else 0, the number of tokens}
--          {"held", ms until it is worth asking again, the holder's fingerprint or false, a holder's label or false}
--          {"record", content}
--
-- All commands that can fail come before the writes that matter: an error means that the key was not taken. The branch for a free key
-- without a queue is short, because the whole fleet shares the server's time.
--
-- Several calls are made by one script (see joint.lua): their locks, their queues and their counters; the second to fourth argument, which all
-- of them have in common; and the first argument of each. The reply is an array. The floor is one that all counters have in common: a client
-- that has seen a higher token of a counter makes the call again by itself.

-- The number of calls at keys in use that the script may still make (see joint.lua).
local contended = 4

-- The answer to a duplicate of an idempotent request, the only kind of request with a fingerprint, if there is a record. Without a queue
-- there is nothing else to do.
local function recorded(stored)
  local content = type(stored) == 'string' and string.match(stored, '^record:[%x-]+:%d+ ()')
  return content and {'record', string.sub(stored, content)}
end

local function acquire(KEYS, ARGV)
  local call, lock, value = redis.call, KEYS[1], ARGV[1]
  local count, is_contended, is_wanted = 1, nil, nil

  local in_use = call('EXISTS', lock, KEYS[2])
  if in_use ~= 0 then
    local record = in_use == 1 and string.find(value, ' ', 1, true) and recorded(redis.pcall('GET', lock))
    if record then
      return record
    end
    contended = contended - 1
    if contended < 0 then
      return false
    end
    --@include value.lua
    --@include holders.lua
    --@include queue.lua
    --@include contend.lua

    local _, me = read(value)
    local answer, _, _, by_others = contend(me, {}, ARGV[4], clock())
    if answer then
      return answer
    end
    is_contended, is_wanted = true, by_others
    if head() then
      value = wanted(value)
    end
  end

  --@include tokens.lua
  call('PSETEX', lock, ARGV[2], value)
  if is_contended or ARGV[5] and tokens < ARGV[5] + 0 then
    return {'granted', last, count, is_wanted and 1 or 0, tokens}
  end
  return last
end

local calls = math.floor(#KEYS / 3)
if calls == 1 then
  return acquire(KEYS, ARGV)
end
--@include joint.lua
local lease, given, queueing, answers = ARGV[1], ARGV[2], ARGV[3], {}
--@include floor.lua
floor = floor + 0
-- Without queues, a key that is not in use is free, and the answer to a duplicate of an idempotent request is the record.
local are_free = redis.call('EXISTS', unpack(KEYS, 1, 2 * calls)) == 0
local has_queues = not are_free and redis.call('EXISTS', unpack(KEYS, calls + 1, 2 * calls)) ~= 0
local stored = not (are_free or has_queues) and redis.call('MGET', unpack(KEYS, 1, calls))
for i = 1, calls do
  local lock, fence, value = KEYS[i], KEYS[2 * calls + i], ARGV[3 + i]
  if are_free or stored and not stored[i] and redis.call('EXISTS', lock) == 0 then
    local last = redis.pcall('INCR', fence)
    local is_token = type(last) == 'number' and last > floor and last < 9007199254740992
    answers[i] = is_token and redis.pcall('PSETEX', lock, lease, value).ok and last
  elseif stored and string.find(value, ' ', 1, true) then
    answers[i] = recorded(stored[i])
  end
  answers[i] = answers[i] or alone(acquire, {lock, KEYS[calls + i], fence}, {value, lease, given, queueing})
end
return answers
