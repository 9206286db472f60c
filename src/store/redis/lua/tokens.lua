-- Takes the tokens of a grant of `count` leases: as many as ARGV 5 says, or one. `last` is the last of them, and `tokens` is their number. Ends
-- the script with an error if there are no tokens left, before anything was granted.
local last, tokens, given = nil, ARGV[5], ARGV[3]
if tokens then
  last = call('INCRBY', KEYS[3], tokens)
else
  last, tokens = call('INCR', KEYS[3]), 1
end
--@include floor.lua
if last - tokens < floor + 0 or ARGV[5] then
  --@include fence.lua
  last, tokens = settle(last, tokens, floor, count)
end
if last >= 9007199254740992 then
  return redis.error_reply('TDLFOREIGN the token counter has run out of numbers')
end
