-- sale_close: a reconciler closes the gate of a sale. From then on only this reconciler, or one with a higher token, continues.
--
-- KEYS  1 state
-- ARGV  1 token, higher than any before (MySQL's stock row counts them)
-- Returns a list, its first member one of
--   closed, 1 or 0   whether the sale was in this Redis before
--   lost, token      a reconciler with this token, at least as high, was here already: give up
-- Not idempotent: the same token answers lost the second time.
local token = tonumber(ARGV[1])
local before = redis.call('HGET', KEYS[1], 'token')
if before and tonumber(before) >= token then return {'lost', before} end
redis.call('HSET', KEYS[1], 'gate', 'closed', 'token', ARGV[1])
return {'closed', before and 1 or 0}
