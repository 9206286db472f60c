-- Where another server can take this one's place, the floor comes with a fraction of a second, in microseconds, that
-- each server has of its own; and it is at least the last moment at which the clock passed that. So tokens are
-- soon above all that were handed out before a fail-over, also where the client did not notice it; and two servers that
-- both take themselves for the primary do not hand out the same ones.
local floor, fraction = string.match(ARGV[3], '^(%d+) (%d+)$')
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
floor = math.max(floor, now - (now - fraction) % 1000000)
