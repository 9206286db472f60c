-- Reads the value of a lock that is held exclusively, or has a record. (holders.lua describes a lock that is shared or counted.)
--   "lease:" owner "@" label         a lease, and the label of the store that holds it
--   "wanted:" owner "@" label        a lease that others wait for
--   "record:" owner " " bytes        a record
-- A lease's fingerprint follows after a space. A store without a label leaves "@" out as well.
--
-- Returns the kind ("lease" for a wanted lease, too), the owner, the fingerprint or the record's bytes, the label, and whether the lease
-- is wanted. The fingerprint and the label are false if they are missing. Returns nil for a value that this crate did not write.
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

-- The value of a lease with the mark "wanted". An attempt that queues behind a lease marks the lease, and a lease that is granted while
-- others wait is marked from the start. A lease without the mark can therefore be released without the queue. A marked lease may have
-- no waiting attempt any more, because places in the queue expire by themselves.
local function wanted(lease)
  return (string.gsub(lease, '^lease:', 'wanted:'))
end

local function foreign()
  return redis.error_reply('TDLFOREIGN the lock holds a value that this crate did not write')
end
