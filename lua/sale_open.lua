-- sale_open: ends a reconciliation. It opens the gate of a loaded sale, which this token closed, to reserve and release.
--
-- KEYS  1 state
-- ARGV  1 token that closed the gate
-- Returns a list of one word
--   opened   the gate is open
--   lost     the gate does not adopt under this token: another reconciler took over, or it is open
local state = redis.call('HMGET', KEYS[1], 'token', 'gate')
if state[1] ~= ARGV[1] or state[2] ~= 'adopt' then return {'lost'} end
redis.call('HSET', KEYS[1], 'gate', 'open')
return {'opened'}
