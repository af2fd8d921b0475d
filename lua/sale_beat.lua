-- sale_beat: the reconciler that closed a sale's gate raises its beat. While the beat rises, others leave the sale to it.
--
-- KEYS  1 state
-- ARGV  1 token that closed the gate
-- Returns a list, its first member one of
--   beating, beat   the beat, as it is now
--   lost            the gate is open or has another token, or the sale is not in this Redis: give up
-- Not idempotent, and need not be: only that the beat rises matters, not by how much. The next reconciler continues from it.
local state = redis.call('HMGET', KEYS[1], 'token', 'gate')
if state[1] ~= ARGV[1] or state[2] == 'open' then return {'lost'} end
return {'beating', redis.call('HINCRBY', KEYS[1], 'beat', 1)}
