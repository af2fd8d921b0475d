-- lock_release: gives one hold of a lock back. The last one frees the lock and publishes that it is free.
--
-- KEYS  1 holder   (as in lock_take); also the channel on which its freeing is published
-- ARGV  1 owner
-- Returns a list, its first member one of
--   freed         nobody has the lock now
--   kept, holds   the owner still has this many holds
--   not_owner     the owner has none: nothing was changed
-- Not idempotent: each call is one hold less. A call whose answer was lost is not sent again, for the lease ends by itself.
local owner = ARGV[1]
if redis.call('HEXISTS', KEYS[1], owner) == 0 then return {'not_owner'} end
local holds = redis.call('HINCRBY', KEYS[1], owner, -1)
if holds > 0 then return {'kept', holds} end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', KEYS[1], 'freed')
return {'freed'}
