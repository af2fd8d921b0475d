-- sale_held: says which orders a sale holds, and writes after them. So a WAIT over the same connection waits for all of these.
--
-- KEYS  1 state   2 orders
-- ARGV  epoch and order, in turn, of each order
-- Returns a list, its first member one of
--   held, digits   one for each order: 1 where it is held and the sale is in this epoch. If any is, `waits` of the state was raised
--   not_loaded     the sale is not in this Redis
-- Not idempotent, and need not be: nobody reads `waits`.
local epoch = redis.call('HGET', KEYS[1], 'epoch')
if not epoch then return {'not_loaded'} end
local digits, any = {}, false
for i = 1, #ARGV, 2 do
  local held = ARGV[i] == epoch and redis.call('HEXISTS', KEYS[2], ARGV[i + 1]) == 1
  any = any or held
  digits[#digits + 1] = held and '1' or '0'
end
if any then redis.call('HINCRBY', KEYS[1], 'waits', 1) end
return {'held', table.concat(digits)}
