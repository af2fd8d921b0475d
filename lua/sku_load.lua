-- sku_load: brings a SKU into Redis as MySQL says it is, in steps of bounded size. Of many that want to at once, one does.
--
-- KEYS  1 state   2 orders   3 open   (as in reduce)   4 applied   (as in sku_adjust)
-- ARGV  1 token, new for each attempt   2 step, then what the step takes:
--   claim    lease in ms, 1 to load it whether it is here or not
--            closes the SKU for this token. MySQL must be read after it
--   orders   order "units lock", ...    locks units for orders
--   finish   epoch available locked sold floor
--            writes the numbers and opens the SKU; floor is the newest intent that they include
--   drop     there is no such SKU: nothing is left of it
-- Returns a list, its first member one of
--   present             (claim) the SKU is here and open: nothing is to be done
--   gate_closed, ms     (claim) another is at it; it may be taken over after so long without a step of it
--   claimed             (claim) what the keys held is forgotten
--   ok                  the step is done, and the lease renewed
--   lost                the SKU is not this token's any more: begin anew
local state = redis.call('HMGET', KEYS[1], 'gate', 'token', 'until', 'lease')
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local step = ARGV[2]
if step == 'claim' then
  if ARGV[4] ~= '1' then
    if state[1] == 'open' then return {'present'} end
    if state[1] and tonumber(state[3]) > now then return {'gate_closed', state[3] - now} end
  end
  redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3], KEYS[4]) -- DEL of a large hash would hold Redis up
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
