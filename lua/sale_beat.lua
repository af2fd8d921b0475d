-- sale_beat: the reconciler that closed a sale's gate shows that it is at work: its beat rises. Others leave the sale to it.
--
-- KEYS  1 state
-- ARGV  1 token that closed the gate
-- Returns a list, its first member one of
--   beating, beat   the beat, as it is now
--   lost            the gate is not this token's any more, or is open, or the sale is not in this Redis: give up
-- Each call raises the beat. Only that it rises matters, not by how much; another reconciler goes on from where it is.
local state = redis.call('HMGET', KEYS[1], 'token', 'gate')
if state[1] ~= ARGV[1] or state[2] == 'open' then return {'lost'} end
return {'beating', redis.call('HINCRBY', KEYS[1], 'beat', 1)}
