-- lock_renew: starts the lease of a held lock again.
--
-- KEYS  1 holder   2 fence   (as in lock_take)
-- ARGV  1 owner   2 lease in ms, at least 1
-- Returns a list of one word
--   renewed     the owner has the lock, for at least a lease from now on
--   not_owner   the lease had ended. Another owner may have the lock, or nobody
-- Idempotent. A lease is never made shorter.
local lease = tonumber(ARGV[2])
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return {'not_owner'} end
if redis.call('PTTL', KEYS[1]) < lease then
  redis.call('PEXPIRE', KEYS[1], lease)
  redis.call('PEXPIRE', KEYS[2], lease + 86400000)
end
return {'renewed'}
