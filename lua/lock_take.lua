-- lock_take: takes a lock, or one more hold for the owner who has it, or answers for how long another owner still has it.
--
-- KEYS  1 holder  hash: owner -> holds. It exists while the lock is held, and expires with the lease
--       2 fence   the newest fencing token. It stays for a day after the last lease
-- ARGV  1 owner   2 lease in ms, at least 1
-- Returns a list, its first member one of
--   granted, fence, holds   the owner has the lock, for at least a lease from now on
--   held, left              another owner has it. Its lease ends in this many ms unless it is renewed
-- The fence is higher than that of every earlier grant, even if this Redis was emptied in between: it is never lower than
-- the clock in ms. Overlapping holds of one owner share it. A lease is never made shorter. A holder without a lease counts
-- as nobody's.
-- Not idempotent: each call is one hold more. A hold whose answer was lost ends with the lease.
local owner, lease = ARGV[1], tonumber(ARGV[2])
local mine, left = redis.call('HEXISTS', KEYS[1], owner) == 1, redis.call('PTTL', KEYS[1])
if left == -1 then -- without a lease: Redis died while it wrote a lock, and took up the first half
  redis.call('DEL', KEYS[1])
  mine, left = false, -2
end
if not mine and left ~= -2 then return {'held', left} end
local fence = tonumber(redis.call('GET', KEYS[2]) or 0)
if not mine or fence == 0 then
  local time = redis.call('TIME')
  fence = math.max(fence + 1, time[1] * 1000 + math.floor(time[2] / 1000))
end
local holds = redis.call('HINCRBY', KEYS[1], owner, 1)
if left < lease then
  redis.call('PEXPIRE', KEYS[1], lease)
  redis.call('SET', KEYS[2], string.format('%.0f', fence), 'PX', lease + 86400000)
end
return {'granted', fence, holds}
