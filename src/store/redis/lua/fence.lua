-- Settles the token counter, from which a block was just taken, above the client's floor and below the server's clock. Returns the last token
-- of the block and the number of its tokens, which is smaller than asked for if the clock leaves no more.
--
-- The clock is the one in microseconds. A counter that is missing (new, evicted, flushed, or lost with the server) begins at the clock, which
-- is above all earlier tokens, because no counter passes the clock: a block ends at the clock, and of a counter that has reached it a call
-- gets no more than FEW tokens, or one for each of the leases that it grants. A call takes the server longer than so many microseconds. Only
-- a floor, which some process has seen, lifts a counter above the clock. Numbers stay below 2^53, up to which a double is exact, and are
-- formatted by string.format, because tostring would round them. A counter of 1 was missing, too: a joint script has just counted that one
-- token (see acquire.lua) and has not handed it out.
local FEW = 5

local function settle(last, block, floor, leases)
  block, floor = tonumber(block), tonumber(floor)
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  local before = last - block
  if before <= 1 then
    before = now - 1
  end
  before = math.max(before, floor)
  block = math.min(block, math.max(now - before, FEW, leases))
  if before + block ~= last then
    last = before + block
    redis.call('SET', KEYS[3], string.format('%.0f', last))
  end
  return last, block
end
