-- sku_unlock: ends a lock that an order of a cart has on units of a SKU, once. The units are sold, or available again.
--
-- KEYS  1 state   2 orders   3 open      (as in sku_lock)
-- ARGV  1 order id   2 lock   3 sold or back
-- Returns a list, its first member one of
--   unlocked, available after, locked after
--   done           the order has no such lock here: it was ended before, or never taken
--   gate_closed    the SKU is being loaded: keep the intent, ask again
--   not_loaded     the SKU is not in this Redis: loading it brings what MySQL has, so nothing is left to be done
-- Idempotent by lock: no other lock ever has its name.
local gate = redis.call('HGET', KEYS[1], 'gate')
if not gate then return {'not_loaded'} end
if gate ~= 'open' then return {'gate_closed'} end
local order = ARGV[1]
local units, lock = string.match(redis.call('HGET', KEYS[2], order) or '', '^(%d+) (%S+)$')
if not lock then redis.call('ZREM', KEYS[3], order) end
if lock ~= ARGV[2] then return {'done'} end
local to = 'available'
if ARGV[3] == 'sold' then to = 'sold' end

redis.call('HINCRBY', KEYS[1], to, units)
local locked = redis.call('HINCRBY', KEYS[1], 'locked', -units)
redis.call('HDEL', KEYS[2], order)
redis.call('ZREM', KEYS[3], order)
return {'unlocked', tonumber(redis.call('HGET', KEYS[1], 'available')), locked}
