-- sale_adjust: applies an operator's change of a sale's stock, once.
--
-- KEYS  1 state   2 applied   (as in sale_load)
-- ARGV  1 intent id   2 units: positive for a restock, negative for units that leave the sale
-- Returns a list, its first member one of
--   applied, stock after, total after
--   done              the stock includes this intent already
--   not_enough, stock fewer units are here than should leave: keep the intent, ask again
--   gate_closed       the sale is being reconciled: keep the intent, ask again
--   not_loaded        the sale is not in this Redis: loading it will include the intent
-- Idempotent by intent id.
local state = redis.call('HMGET', KEYS[1], 'gate', 'stock')
if not state[1] then return {'not_loaded'} end
if state[1] ~= 'open' then return {'gate_closed'} end
if redis.call('SISMEMBER', KEYS[2], ARGV[1]) == 1 then return {'done'} end
if state[2] + ARGV[2] < 0 then return {'not_enough', tonumber(state[2])} end
redis.call('SADD', KEYS[2], ARGV[1])
return {'applied', redis.call('HINCRBY', KEYS[1], 'stock', ARGV[2]), redis.call('HINCRBY', KEYS[1], 'total', ARGV[2])}
