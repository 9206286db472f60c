-- A lock that is shared or counted is a sorted set, which expires with its last lease. A member is a holder, and its score is the time at
-- which the holder's lease ends, in ms of the server's clock:
--   "shared:" owner "@" label         a shared lease
--   "permit:" n ":" owner "@" label   one of n permits
-- A set has shared leases or permits, and never both. A store without a label leaves "@" out as well. For example, two share a key:
--   1731756030000    shared:<instance>:7@web-3
--   1731756031500    shared:<instance>:12@web-1
-- Needs value.lua.

-- Reads a member. Returns the kind ("shared" or "permit") and the label, which is false if it is missing; or nil for a member that this
-- crate did not write.
local function read_holder(member)
  local kind, rest = string.match(member, '^(%l+):%x+%-[%x-]+:%d+(.*)$')
  if kind ~= 'shared' then
    kind, rest = string.match(member, '^(permit):%d+:%x+%-[%x-]+:%d+(.*)$')
  end
  local label = string.match(rest or '', '^@([%w._-]+)$')
  if not kind or rest ~= '' and not label then
    return nil
  end
  return kind, label or false
end

-- Reads the lock, and removes the leases in it that have expired. Returns a table:
--   kind     "exclusive", "shared", "permit" or "record"; nil if the key is free
--   held     the number of leases
--   ends     when the first of several leases ends
--   value    the value of a lock that is a string, with its owner and its content: the fingerprint or the record
--   label    the label of a holder, or false
--   error    the reply to return, if this crate did not write the lock
local function look(now)
  local value = redis.pcall('GET', KEYS[1])
  if not value then
    return {held = 0}
  end
  if type(value) == 'string' then
    local kind, owner, content, label = read(value)
    if kind == 'lease' then
      kind = 'exclusive'
    end
    return {kind = kind, held = 1, value = value, owner = owner, content = content, label = label, error = not kind and foreign()}
  end
  local first = redis.pcall('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
  if first.err then
    return {error = value}
  end
  local kind, label = read_holder(first[1])
  if not kind then
    return {error = foreign()}
  end
  if first[2] + 0 <= now then
    redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
    first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
    if not first[1] then
      return {held = 0}
    end
    kind, label = read_holder(first[1])
  end
  return {kind = kind, held = redis.call('ZCARD', KEYS[1]), ends = first[2] + 0, label = label}
end

-- Extends a holder's lease, and never shortens it. Returns whether the holder has one.
local function extend(holder, lease, now)
  local ends = redis.call('ZSCORE', KEYS[1], holder)
  if not ends or ends + 0 <= now then
    return false
  end
  if ends + 0 < now + lease then
    -- PEXPIRE comes first, because a full server refuses ZADD unless the script has written before.
    redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.max(lease, redis.call('PTTL', KEYS[1]))))
    redis.call('ZADD', KEYS[1], string.format('%.0f', now + lease), holder)
  end
  return true
end

-- The holder that the owner of an exclusive lease is after a downgrade. A renewal or a release may have been written before it.
local function downgraded(lease)
  return 'shared:' .. string.sub(lease, #'lease:' + 1)
end
