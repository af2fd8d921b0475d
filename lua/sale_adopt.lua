-- sale_adopt: re-queues an order of an older epoch, which a consumer still holds, in the current epoch. The order gets a unit, a
-- reservation and an outbox entry of the new epoch. Only that entry is ever inserted.
--
-- KEYS  1 state   2 orders   3 buyers   4 idem   5 outbox   (as in sale_reserve)
-- ARGV  1 epoch that MySQL has now   2 order id   3 uid   4 quantity   5 slots   6 Idempotency-Key or ""
--       7 at, when the order was accepted   8 traceparent or ""   9 consumer group that gives up the old entry
-- Returns a list, its first member one of
--   adopted, entry    it is in the outbox under this epoch now
--   present, entry    it was there already
--   sold_out          no unit is left for it: reject it, with an error in the log
--   limit             other orders have the buyer's slots: reject it, with an error in the log
--   key_reused, order another order has the buyer's Idempotency-Key: reject it, with an error in the log
--   gate_closed       the sale is closed or not loaded: hold the order, ask again
--   stale_epoch       Redis has another epoch than the caller: hold the order, ask again
-- Idempotent by order id.
local state = redis.call('HMGET', KEYS[1], 'epoch', 'gate', 'stock', 'limit')
local epoch, gate, stock, limit = state[1], state[2], tonumber(state[3]), tonumber(state[4])
if gate ~= 'open' and gate ~= 'adopt' then return {'gate_closed'} end
if epoch ~= ARGV[1] then return {'stale_epoch'} end
local order, uid, quantity, slots, key, at = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6], ARGV[7]

local held = redis.call('HGET', KEYS[2], order)
local old = nil
if held then
  old = string.match(held, '^%S+ %d+ %S+ (%S+) ')
  slots = string.match(held, '^%S+ %d+ (%S+) ')
  local entry = redis.call('XRANGE', KEYS[5], old, old)
  if entry[1] then
    for i = 1, #entry[1][2], 2 do
      if entry[1][2][i] == 'epoch' and entry[1][2][i + 1] == epoch then return {'present', old} end
    end
  end
else
  local owner = key ~= '' and redis.call('HGET', KEYS[4], uid .. ':' .. key)
  if owner and not string.find(owner, order .. ' ', 1, true) then return {'key_reused', string.match(owner, '^%S+')} end
  if stock < quantity then return {'sold_out'} end
  local taken, mine = {}, redis.call('HGET', KEYS[3], uid) or ''
  for slot in string.gmatch(mine, '(%d+)=') do taken[tonumber(slot)] = true end
  local free, slot = {}, 1
  while #free < quantity and slot <= limit do
    if not taken[slot] then free[#free + 1] = slot end
    slot = slot + 1
  end
  if #free < quantity then return {'limit'} end
  for _, s in ipairs(free) do mine = mine .. (mine == '' and '' or ',') .. s .. '=' .. order end
  slots = table.concat(free, ',')
  redis.call('HINCRBY', KEYS[1], 'stock', -quantity)
  redis.call('HSET', KEYS[3], uid, mine)
end
local entry = redis.call('XADD', KEYS[5], '*', 'id', order, 'uid', uid, 'quantity', quantity, 'slots', slots, 'key', key,
  'epoch', epoch, 'at', at, 'trace', ARGV[8])
redis.call('HSET', KEYS[2], order, uid .. ' ' .. quantity .. ' ' .. slots .. ' ' .. entry .. ' ' .. at .. ' ' .. key)
if key ~= '' then redis.call('HSET', KEYS[4], uid .. ':' .. key, order .. ' ' .. quantity) end
if old and old ~= '-' and old ~= entry then -- equal: the stream was lost and created again within a millisecond
  redis.call('XACK', KEYS[5], ARGV[9], old)
  redis.call('XDEL', KEYS[5], old)
end
return {'adopted', entry}
