-- Raises the token counter, from which a block was just taken, above the client's floor. Returns the last token of the block.
--
-- A counter that was missing (new, evicted, flushed) continues from the server's clock in microseconds, if the clock is higher. Numbers
-- stay below 2^53, up to which a double is exact, and are formatted by string.format, because tostring would round them.
local function raise(last, block, floor)
  block, floor = tonumber(block), tonumber(floor)
  if last == block then
    local time = redis.call('TIME')
    floor = math.max(floor, time[1] * 1000000 + time[2])
  end
  last = math.max(last, floor + block)
  redis.call('SET', KEYS[3], string.format('%.0f', last))
  return last
end
