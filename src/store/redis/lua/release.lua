-- Ends an owner's lease, or its attempt if it is only queued, and tells who may go on.
--
-- KEYS     1 lock, 2 queue
-- ARGV     1 the lease's value without its fingerprint
--          2 the record's value, 3 for how many ms it is kept: both only if a record takes the lease's place
-- Returns  1 when the lease was the owner's until now, or a record of the owner is there already; else 0
--
-- Whatever can fail comes before the writes that matter: an error means that nothing was released.

local value = redis.call('GET', KEYS[1])
if value == ARGV[1] and not ARGV[2] then
  return redis.call('DEL', KEYS[1])
end

--@include value.lua
--@include queue.lua

local kind, holder = read(value)
if value and not kind then
  return foreign()
end
local _, me = read(ARGV[1])
local now = clock()
prune(now)
leave(me)

if kind == 'lease' and holder == me then
  if ARGV[2] then
    redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
    for _, owner in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], 0, CLOCKS)) do
      hint(owner, 'free')
    end
  else
    redis.call('DEL', KEYS[1])
    offer(now)
  end
  return 1
end

if not value then
  offer(now)
elseif kind == 'lease' then
  unmark_unless_queued(value)
end
return holder == me and 1 or 0
