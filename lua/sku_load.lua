-- sku_load: writes a SKU into Redis as MySQL has it, in steps of bounded size. Of several callers at once, one does it.
--
-- KEYS  1 state   2 orders   3 open   (as in sku_lock)   4 applied   (as in sku_adjust)
-- ARGV  1 token, new for each attempt   2 step, then what the step takes:
--   claim    lease in ms, 1 to load it whether it is here or not
--            closes the SKU for this token. MySQL must be read after it
--   orders   order "units lock", ...    locks units for orders
--   finish   epoch available locked sold floor
--            writes the numbers and opens the SKU. Floor is the newest intent that they include
--   drop     removes the SKU, which does not exist in MySQL
-- Returns a list, its first member one of
--   present             (claim) the SKU is here and open: nothing is to be done
--   gate_closed, ms     (claim) another caller loads it, and may be replaced if it makes no step for this long
--   claimed             (claim) what the keys held is removed
--   ok                  the step is done, and the lease starts again
--   lost                this token does not have the SKU any more: begin again
local state = redis.call('HMGET', KEYS[1], 'gate', 'token', 'until', 'lease')
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local step = ARGV[2]
if step == 'claim' then
  if ARGV[4] ~= '1' then
    if state[1] == 'open' then return {'present'} end
    if state[1] and tonumber(state[3]) > now then return {'gate_closed', state[3] - now} end
  end
  redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3], KEYS[4]) -- DEL of a large hash would block Redis
  redis.call('HSET', KEYS[1], 'gate', 'closed', 'token', ARGV[1], 'lease', ARGV[3], 'until', now + ARGV[3])
  return {'claimed'}
end
if state[1] ~= 'closed' or state[2] ~= ARGV[1] then return {'lost'} end
if step == 'orders' then
  for i = 3, #ARGV, 2 do redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
  redis.call('HSET', KEYS[1], 'until', now + state[4])
elseif step == 'finish' then
  redis.call('HDEL', KEYS[1], 'until', 'lease')
  redis.call('HSET', KEYS[1], 'gate', 'open', 'epoch', ARGV[3], 'available', ARGV[4], 'locked', ARGV[5], 'sold', ARGV[6],
    'floor', ARGV[7], 'total', ARGV[4] + ARGV[5] + ARGV[6])
elseif step == 'drop' then
  redis.call('DEL', KEYS[1])
else
  return redis.error_reply('sku_load: no step ' .. step)
end
return {'ok'}
