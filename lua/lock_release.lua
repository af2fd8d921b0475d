-- lock_release: gives one hold of a lock back; the last one frees the lock and tells who waits for it.
--
-- KEYS  1 holder   (as in lock); also the channel on which it is told that the lock is free
-- ARGV  1 owner
-- Returns a list, its first member one of
--   freed         nobody has the lock now
--   kept, holds   the owner still has this many holds
--   not_owner     the owner has none: nothing was changed
-- Not idempotent: each call is a hold less. One whose answer was lost is not sent again: the lease ends by itself.
local owner = ARGV[1]
if redis.call('HEXISTS', KEYS[1], owner) == 0 then return {'not_owner'} end
local holds = redis.call('HINCRBY', KEYS[1], owner, -1)
if holds > 0 then return {'kept', holds} end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', KEYS[1], 'freed')
return {'freed'}
