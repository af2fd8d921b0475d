-- sku_lock: locks units of a SKU for one order of a cart. It checks everything first, then writes all of it or nothing.
--
-- KEYS  1 state   hash: gate token until lease epoch locks available locked sold total floor
--       2 orders  hash: order id -> "units lock"; what is locked for it, and the name of the lock
--       3 open    sorted set: the orders in it that nobody has compared with MySQL yet, by the time of the lock in ms
-- ARGV  1 order id   2 units >= 1
-- Returns a list, its first member one of
--   reduced, available after, locked after, lock     the units are locked; MySQL decides. The lock is "epoch.number"
--   already_applied, available, locked, lock         this order has its units locked here
--   not_enough, available                            less is available than was asked for
--   not_loaded                                       the SKU is not in this Redis, or is being loaded
-- Idempotent by order id, while the order has the units locked. A later call locks them again under another name. No order in
-- MySQL has that name, so the sweep finds the lock and gives it back.
local state = redis.call('HMGET', KEYS[1], 'gate', 'available', 'locked', 'epoch')
if state[1] ~= 'open' then return {'not_loaded'} end
local order, units, available = ARGV[1], tonumber(ARGV[2]), tonumber(state[2])
local held = redis.call('HGET', KEYS[2], order)
if held then return {'already_applied', available, tonumber(state[3]), string.match(held, ' (%S+)$')} end
if available < units then return {'not_enough', available} end

local time = redis.call('TIME')
redis.call('ZADD', KEYS[3], time[1] * 1000 + math.floor(time[2] / 1000), order)
local lock = state[4] .. '.' .. redis.call('HINCRBY', KEYS[1], 'locks', 1)
redis.call('HSET', KEYS[2], order, ARGV[2] .. ' ' .. lock)
return {'reduced', redis.call('HINCRBY', KEYS[1], 'available', -units), redis.call('HINCRBY', KEYS[1], 'locked', units), lock}
