-- sale_reserve: decides one order. It checks everything first, then writes all of it or nothing.
--
-- KEYS  1 state   hash: epoch gate token stock total starts ends limit paused closed later version standby
--       2 orders  hash: order id -> "uid quantity slots entry at key"; the reservations
--       3 buyers  hash: uid -> "slot=order,slot=order"; the slots that are taken
--       4 idem    hash: "uid:key" -> "order quantity", accepted Idempotency-Keys; uid -> how many of the buyer's orders have ended
--       5 outbox  stream: id uid quantity slots key epoch at trace
-- ARGV  1 epoch that the caller knows   2 uid   3 quantity >= 1   4 order id, new   5 Idempotency-Key or ""
--       6 traceparent or ""   7 line: on behalf of the standby line; "": for anybody else
--       8 how many orders of a buyer may have ended; 0: any number
-- Returns a list, its first member one of
--   reserved, order, available after, reserved after, entry, slots, at   the order is made, and is in the outbox
--   repeated, order        this order id, or this buyer's Idempotency-Key with this quantity, was accepted before
--   key_reused, order      this buyer's Idempotency-Key was accepted before, with another quantity
--   already_ordered, order the buyer's limit leaves no room; order is the newest they hold
--   sold_out               nothing is available now; or somebody waits in the standby line, which gets what is available
--   not_enough, available  less is available than was asked for; or the limit, if that is less and the buyer holds nothing
--   too_many, ended        so many of the buyer's orders in this sale have ended that no more is accepted
--   not_started, starts    by this Redis's clock; in milliseconds
--   ended                  by the clock, or closed for good
--   paused                 by an operator
--   gate_closed            the sale is being reconciled: ask again
--   stale_epoch, epoch     the caller knows another epoch: ask again with this one
--   not_loaded             the sale is not in this Redis
-- Idempotent by order id, and by Idempotency-Key if there is one. Available counts released tranches only.
local state = redis.call('HMGET', KEYS[1], 'epoch', 'gate', 'stock', 'total', 'starts', 'ends', 'limit', 'paused', 'closed', 'later', 'standby')
local epoch, gate, stock, total, later = state[1], state[2], tonumber(state[3]), tonumber(state[4]), state[10]
if not gate then return {'not_loaded'} end
if gate ~= 'open' then return {'gate_closed'} end
if epoch ~= ARGV[1] then return {'stale_epoch', epoch} end

local uid, quantity, order, key = ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
if redis.call('HEXISTS', KEYS[2], order) == 1 then return {'repeated', order} end
if key ~= '' then
  local before = redis.call('HGET', KEYS[4], uid .. ':' .. key)
  if before then
    local first, amount = string.match(before, '^(%S+) (%d+)$')
    if tonumber(amount) ~= quantity then return {'key_reused', first} end
    return {'repeated', first}
  end
end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if state[9] == '1' or now >= tonumber(state[6]) then return {'ended'} end
if now < tonumber(state[5]) then return {'not_started', state[5]} end
if state[8] == '1' then return {'paused'} end

local limit = tonumber(state[7])
local held = redis.call('HGET', KEYS[3], uid) or ''
local taken, count, newest = {}, 0, nil
for slot, id in string.gmatch(held, '(%d+)=([^,]+)') do
  taken[tonumber(slot)] = true
  count = count + 1
  if not newest or id > newest then newest = id end -- order ids are time-ordered
end
if count + quantity > limit then
  if not newest then return {'not_enough', limit} end
  return {'already_ordered', newest}
end

local available = stock
for at, n in string.gmatch(later, '(%d+):(%d+)') do
  if tonumber(at) > now then available = available - n end
end
if available <= 0 or state[11] and ARGV[7] ~= 'line' then return {'sold_out'} end
if available < quantity then return {'not_enough', available} end
local most = tonumber(ARGV[8])
if most > 0 then
  local ended = tonumber(redis.call('HGET', KEYS[4], uid) or 0)
  if ended >= most then return {'too_many', ended} end
end

local slots, slot = {}, 1
while #slots < quantity do
  if not taken[slot] then
    slots[#slots + 1] = slot
    held = held .. (held == '' and '' or ',') .. slot .. '=' .. order
  end
  slot = slot + 1
end
local list = table.concat(slots, ',')
local entry = redis.call('XADD', KEYS[5], '*', 'id', order, 'uid', uid, 'quantity', quantity, 'slots', list, 'key', key,
  'epoch', epoch, 'at', now, 'trace', ARGV[6])
redis.call('HINCRBY', KEYS[1], 'stock', -quantity)
redis.call('HSET', KEYS[2], order, uid .. ' ' .. quantity .. ' ' .. list .. ' ' .. entry .. ' ' .. now .. ' ' .. key)
redis.call('HSET', KEYS[3], uid, held)
if key ~= '' then redis.call('HSET', KEYS[4], uid .. ':' .. key, order .. ' ' .. quantity) end
return {'reserved', order, available - quantity, total - stock + quantity, entry, list, now}
