-- reduce: locks units of a SKU for one order of a cart. Everything is checked first; then all of it is written, or nothing was.
--
-- KEYS  1 state   hash: gate token until epoch available locked sold total floor
--       2 orders  hash: order id -> units that are locked for it
--       3 open    sorted set: of those, the ones that nobody has compared with MySQL yet; since when, in milliseconds
-- ARGV  1 order id   2 units >= 1
-- Returns a list, its first member one of
--   reduced, available after, locked after, epoch     the units are locked; MySQL decides, in this epoch
--   already_applied, available, locked, epoch         this order has its units locked here
--   not_enough, available                             less is available than was asked for
--   not_loaded                                        the SKU is not in this Redis, or is just being loaded
-- Idempotent by order id, for as long as the order has the units locked.
local state = redis.call('HMGET', KEYS[1], 'gate', 'available', 'locked', 'epoch')
if state[1] ~= 'open' then return {'not_loaded'} end
local order, units, available = ARGV[1], tonumber(ARGV[2]), tonumber(state[2])
if redis.call('HEXISTS', KEYS[2], order) == 1 then return {'already_applied', available, tonumber(state[3]), state[4]} end
if available < units then return {'not_enough', available} end

local time = redis.call('TIME')
redis.call('ZADD', KEYS[3], time[1] * 1000 + math.floor(time[2] / 1000), order)
redis.call('HSET', KEYS[2], order, units)
return {'reduced', redis.call('HINCRBY', KEYS[1], 'available', -units), redis.call('HINCRBY', KEYS[1], 'locked', units), state[4]}
