-- Checks that the server runs scripts and accepts writes. Changes nothing: with XX, a name that does not exist is not set.
--
-- KEYS     1 a name that never exists
-- Returns  1

redis.call('SET', KEYS[1], '', 'XX')
return 1
