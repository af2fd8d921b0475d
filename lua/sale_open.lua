-- sale_open: ends a reconciliation: the gate that this token closed, and whose sale is loaded, is opened to reserve and release.
--
-- KEYS  1 state
-- ARGV  1 token that closed the gate
-- Returns opened, or lost: the gate is not adopting under this token (another reconciler took over, or it is open).
local state = redis.call('HMGET', KEYS[1], 'token', 'gate')
if state[1] ~= ARGV[1] or state[2] ~= 'adopt' then return {'lost'} end
redis.call('HSET', KEYS[1], 'gate', 'open')
return {'opened'}
