-- Ends an owner's lease, or the attempt of an owner that is only queued, and offers the free key to the head of the queue.
--
-- KEYS     1 lock, 2 queue
-- ARGV     1 the lease's value without its fingerprint
--          2 the record's value, 3 the ms for which the record is kept: both only if a record replaces the lease
-- Returns  1 if the owner held the lease until now, or a record of the owner is there already; else 0
--
-- All commands that can fail come before the writes that matter: an error means that the lease was not ended.

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
