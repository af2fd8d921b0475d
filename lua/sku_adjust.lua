-- sku_adjust: applies an operator's change of a SKU's available units, once.
--
-- KEYS  1 state   2 applied  set: ids of intents above floor that available includes
-- ARGV  1 intent id   2 units: positive for those that come, negative for those that leave, to a sale
-- Returns a list, its first member one of
--   applied, available after, total after
--   done           the numbers include this intent already
--   gate_closed    the SKU is being loaded: keep the intent, ask again
--   not_loaded     the SKU is not in this Redis: loading it will include the intent
-- Idempotent by intent id. Available may be below 0 for a moment: MySQL has given the units away, and refuses the orders
-- that have them locked here.
local state = redis.call('HMGET', KEYS[1], 'gate', 'floor')
if not state[1] then return {'not_loaded'} end
if state[1] ~= 'open' then return {'gate_closed'} end
if tonumber(ARGV[1]) <= tonumber(state[2]) or redis.call('SISMEMBER', KEYS[2], ARGV[1]) == 1 then return {'done'} end
redis.call('SADD', KEYS[2], ARGV[1])
return {'applied', redis.call('HINCRBY', KEYS[1], 'available', ARGV[2]), redis.call('HINCRBY', KEYS[1], 'total', ARGV[2])}
