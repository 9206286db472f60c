-- Takes the tokens of a grant: as many as ARGV 5 says, or one. `last` is the last of them. Ends the script with an error if there are no
-- tokens left, before anything was granted.
local last, block = nil, ARGV[5]
if block then
  last = call('INCRBY', KEYS[3], block)
else
  last, block = call('INCR', KEYS[3]), 1
end
--@include floor.lua
if last - block < floor + 0 then
  --@include fence.lua
  last = raise(last, block, floor)
end
if last >= 9007199254740992 then
  return redis.error_reply('TDLFOREIGN the token counter has run out of numbers')
end
