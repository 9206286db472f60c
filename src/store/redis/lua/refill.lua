-- Hands out the tokens that a renewal asks for (ARGV 4). Returns the last of them and their number, or 0 for none.
--
-- By pcall, because a full server, which cannot count, must not fail the renewal: the lease goes on without further tokens.
local function refill()
  --@include fence.lua
  local given = ARGV[3]
  --@include floor.lua
  local last, tokens = redis.pcall('INCRBY', KEYS[3], ARGV[4]), nil
  if type(last) ~= 'number' then
    return 0, 0
  end
  last, tokens = settle(last, ARGV[4], floor, 1)
  return last < 9007199254740992 and last or 0, tokens
end
