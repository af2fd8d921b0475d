-- sale_load: writes a sale as MySQL and the outbox have it, behind a closed gate, in steps of bounded size.
--
-- KEYS  1 state   2 orders   3 buyers   4 idem   (as in sale_reserve)   5 applied  set: ids of the operators' intents in stock
-- ARGV  1 token that closed the gate   2 step, then what the step takes:
--   begin                                     removes keys 2 to 5, and marks them as not whole
--   orders   order uid quantity slots entry at key, ...   adds reservations, each once after a begin, at most 1,000
--   keys     uid:key "order quantity", ...    adds accepted Idempotency-Keys; and, as uid n, that n orders of the buyer have ended
--   applied  id, ...                          adds intents
--   finish   epoch stock total starts ends limit paused closed later version standby
--            writes the state, marks keys 2 to 5 as whole and opens the gate to adopt. A definition newer than version
--            stays, and so does a newer place in the standby line (0: the caller knows of nobody who waits)
-- Returns a list of one word
--   ok     the step is done
--   lost   this token does not close the gate, for another reconciler took over: give up
-- Not idempotent: an attempt that failed starts again at begin.
local state = redis.call('HMGET', KEYS[1], 'token', 'gate', 'version', 'standby')
if state[1] ~= ARGV[1] or state[2] ~= 'closed' then return {'lost'} end
local step = ARGV[2]
if step == 'begin' then
  redis.call('HSET', KEYS[1], 'whole', '0') -- first, for Redis takes up the beginning of a torn script
  redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4], KEYS[5]) -- DEL of a large hash would block Redis
elseif step == 'orders' then
  local uids, held, orders, buyers = {}, {}, {}, {}
  for i = 3, #ARGV, 7 do uids[#uids + 1] = ARGV[i + 1] end
  if #uids == 0 then return {'ok'} end
  local before = redis.call('HMGET', KEYS[3], unpack(uids)) -- a call for all: a million single ones close a gate for long
  for n, uid in ipairs(uids) do held[uid] = before[n] or '' end
  for i = 3, #ARGV, 7 do
    local order, uid = ARGV[i], ARGV[i + 1]
    orders[#orders + 1] = order
    orders[#orders + 1] = table.concat(ARGV, ' ', i + 1, i + 6)
    for slot in string.gmatch(ARGV[i + 3], '%d+') do
      held[uid] = held[uid] .. (held[uid] == '' and '' or ',') .. slot .. '=' .. order
    end
  end
  for _, uid in ipairs(uids) do
    buyers[#buyers + 1] = uid
    buyers[#buyers + 1] = held[uid]
  end
  redis.call('HSET', KEYS[2], unpack(orders))
  redis.call('HSET', KEYS[3], unpack(buyers))
elseif step == 'keys' then
  if #ARGV > 2 then redis.call('HSET', KEYS[4], unpack(ARGV, 3)) end
elseif step == 'applied' then
  if #ARGV > 2 then redis.call('SADD', KEYS[5], unpack(ARGV, 3)) end
elseif step == 'finish' then
  redis.call('HSET', KEYS[1], 'gate', 'adopt', 'whole', '1', 'epoch', ARGV[3], 'stock', ARGV[4], 'total', ARGV[5])
  if not state[3] or tonumber(state[3]) <= tonumber(ARGV[12]) then
    redis.call('HSET', KEYS[1], 'starts', ARGV[6], 'ends', ARGV[7], 'limit', ARGV[8], 'paused', ARGV[9],
      'closed', ARGV[10], 'later', ARGV[11], 'version', ARGV[12])
  end
  if tonumber(ARGV[13]) > tonumber(state[4] or 0) then redis.call('HSET', KEYS[1], 'standby', ARGV[13]) end
else
  return redis.error_reply('sale_load: no step ' .. step)
end
return {'ok'}
