-- Lifts the token counter, of which a block was taken, above a floor that the client knows of. A counter that was
-- missing (new, evicted, flushed) goes on from the server's clock in microseconds, if that is higher. Numbers stay
-- below 2^53, where a double is exact, and are formatted by hand: tostring would round them. Returns the block's last.
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
