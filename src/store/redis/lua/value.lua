-- What stands at a lock:
--   "lease:" owner             a lease
--   "wanted:" owner            a lease that others wait for
--   "record:" owner " " bytes  a record
-- A lease's note follows its owner after a space. Reads the kind (a wanted lease is a lease), whose it is, and the note
-- (false if there is none) or the record's bytes. Nothing for a value that nobody of us wrote.
local function read(value)
  local kind, owner = string.match(value or '', '^(%l+):([%x-]+:%d+)')
  if kind ~= 'lease' and kind ~= 'wanted' and kind ~= 'record' then
    return nil
  end
  local rest = string.sub(value, #kind + #owner + 2)
  if kind == 'wanted' then
    kind = 'lease'
  end
  if rest == '' and kind == 'lease' then
    return kind, owner, false
  end
  if string.sub(rest, 1, 1) == ' ' then
    return kind, owner, string.sub(rest, 2)
  end
  return nil
end

-- The same lease, as one that others wait for. Whoever queues behind a lease marks it so, and a lease that is granted
-- before others is marked from its start. So one without the mark can be released without a look at the queue.
local function wanted(lease)
  return (string.gsub(lease, '^lease:', 'wanted:'))
end

local function foreign()
  return redis.error_reply('TDLFOREIGN the lock holds a value that this crate did not write')
end
