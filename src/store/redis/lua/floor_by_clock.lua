-- The floor where another server can replace this one. `given` is "<floor> <fraction>": the fraction is a microsecond within the
-- second, and every server has a different fraction. The floor is raised to the last moment at which the server's clock passed the
-- fraction. Within a second, tokens are therefore above all tokens from before a fail-over, even if the client did not notice the
-- fail-over; and two servers that both act as the primary hand out different tokens.
local floor, fraction = string.match(given, '^(%d+) (%d+)$')
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
floor = math.max(floor, now - (now - fraction) % 1000000)
