-- Ends an owner's lease that nobody waits for, without a look at the queue. For a slot of a Cluster that is on its way to
-- another node: there, a script with one key runs wherever that key is, and one with more is refused.
--
-- KEYS     1 lock
-- ARGV     as in release.lua
-- Returns  1; or the error TRYAGAIN, if release.lua must run

local value = redis.call('GET', KEYS[1]) or ''
if value ~= ARGV[1] and string.sub(value, 1, #ARGV[1] + 1) ~= ARGV[1] .. ' ' then
  return redis.error_reply('TRYAGAIN the queue is needed for this release')
end
if ARGV[2] then
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
else
  redis.call('DEL', KEYS[1])
end
return 1
