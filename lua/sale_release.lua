-- sale_release: gives the units of an order that ended back, once.
--
-- KEYS  1 state   2 orders   3 buyers   4 idem   (as in sale_reserve)
--       5 gone    list: the newest 500 reservations that were released, "order uid quantity ..." as in orders. State counts all of
--                 them in released. So whoever reads orders by pages learns what left between two pages
-- ARGV  1 order id
-- Returns a list, its first member one of
--   released, stock after   the units are back, the buyer's slots are free, and one more of the buyer's orders has ended
--   done                    the order holds nothing here: it was released before, or never reserved
--   gate_closed             the sale is being reconciled: keep the intent, ask again
--   not_loaded              the sale is not in this Redis: keep the intent, ask again
-- Idempotent by order id: a release removes the order from orders.
local gate = redis.call('HGET', KEYS[1], 'gate')
if not gate then return {'not_loaded'} end
if gate ~= 'open' then return {'gate_closed'} end
local order = ARGV[1]
local held = redis.call('HGET', KEYS[2], order)
if not held then return {'done'} end
local uid, quantity = string.match(held, '^(%S+) (%d+) ')

local left = {}
for slot, id in string.gmatch(redis.call('HGET', KEYS[3], uid) or '', '(%d+)=([^,]+)') do
  if id ~= order then left[#left + 1] = slot .. '=' .. id end
end
local stock = redis.call('HINCRBY', KEYS[1], 'stock', quantity)
redis.call('HDEL', KEYS[2], order)
if #left == 0 then redis.call('HDEL', KEYS[3], uid) else redis.call('HSET', KEYS[3], uid, table.concat(left, ',')) end
redis.call('HINCRBY', KEYS[4], uid, 1)
redis.call('RPUSH', KEYS[5], order .. ' ' .. held)
redis.call('LTRIM', KEYS[5], -500, -1)
redis.call('HINCRBY', KEYS[1], 'released', 1)
return {'released', stock}
