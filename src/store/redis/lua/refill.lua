-- Hands out the tokens that a renewal asks for (ARGV 4). Returns the last of them, or 0 for none.
--
-- By pcall, because a full server, which cannot count, must not fail the renewal: the lease goes on without further tokens.
local function refill()
  --@include fence.lua
  --@include floor.lua
  local last = redis.pcall('INCRBY', KEYS[3], ARGV[4])
  if type(last) ~= 'number' then
    return 0
  end
  if last - ARGV[4] < floor + 0 then
    last = raise(last, ARGV[4], floor)
  end
  return last < 9007199254740992 and last or 0
end
