-- What stands at a lock:
--   "lease:" owner "@" label         a lease, and the label of the store that took it
--   "wanted:" owner "@" label        a lease that others wait for
--   "record:" owner " " bytes        a record
-- A lease's fingerprint follows after a space. A store without a label leaves "@" out as well. Reads the kind (a wanted
-- lease is a lease), whose it is, the fingerprint or the record's bytes, the label, and whether the lease is wanted; false
-- for what is not there. Nothing for a value that this crate did not write.
local function read(value)
  local kind, owner, rest = string.match(value or '', '^(%l+):([%x-]+:%d+)(.*)$')
  if kind ~= 'lease' and kind ~= 'wanted' and kind ~= 'record' then
    return nil
  end
  local label, unlabelled = string.match(rest, '^@([%w._-]+)(.*)$')
  rest = unlabelled or rest
  local is_wanted = kind == 'wanted'
  if is_wanted then
    kind = 'lease'
  end
  if rest == '' and kind == 'lease' then
    return kind, owner, false, label or false, is_wanted
  end
  if string.sub(rest, 1, 1) == ' ' then
    return kind, owner, string.sub(rest, 2), label or false, is_wanted
  end
  return nil
end

-- The same lease, as one that others wait for. Whoever queues behind a lease marks it so, and a lease that is granted
-- before others is marked from its start. So one without the mark can be released without a look at the queue. One with
-- the mark may be wanted by nobody any more: places in the queue expire by themselves.
local function wanted(lease)
  return (string.gsub(lease, '^lease:', 'wanted:'))
end

local function foreign()
  return redis.error_reply('TDLFOREIGN the lock holds a value that this crate did not write')
end
