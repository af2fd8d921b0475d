-- sale_standby: the standby line's part in a sale's state: whether a buyer may join the line, and whether somebody waits in it.
-- While somebody does, sale_reserve keeps what is available for the line.
--
-- KEYS  1 state   2 buyers   (as in sale_reserve)
-- ARGV  1 step, then what the step takes:
--   look uid     changes nothing
--   wait place   notes that somebody waits. The place is the newest that the caller knows
--   rest place   notes that nobody waits, unless a newer place was noted since the caller read this one
-- Returns a list, its first member one of
--   joinable          (look) the buyer may join
--   available         (look) units are available and nobody waits: order instead
--   already_ordered, order   gate_closed   ended   not_started, starts   paused
--                     (look) as sale_reserve would answer for one unit
--   done, kept        (wait, rest) the note is written; or there was nothing to change
--   not_loaded        the sale is not in this Redis
-- Idempotent. Places of a sale only grow, so a late wait or rest does no harm to a newer place. Wait also works while the
-- sale is being reconciled: a load keeps the newest place.
local state = redis.call('HMGET', KEYS[1], 'gate', 'stock', 'starts', 'ends', 'limit', 'paused', 'closed', 'later', 'standby')
local waiting = tonumber(state[9] or 0)
if not state[1] then return {'not_loaded'} end
if ARGV[1] == 'wait' then
  if waiting >= tonumber(ARGV[2]) then return {'kept'} end
  redis.call('HSET', KEYS[1], 'standby', ARGV[2])
  return {'done'}
elseif ARGV[1] == 'rest' then
  if waiting ~= tonumber(ARGV[2]) or waiting == 0 then return {'kept'} end
  redis.call('HDEL', KEYS[1], 'standby')
  return {'done'}
elseif ARGV[1] ~= 'look' then
  return redis.error_reply('sale_standby: no step ' .. ARGV[1])
end
if state[1] ~= 'open' then return {'gate_closed'} end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if state[7] == '1' or now >= tonumber(state[4]) then return {'ended'} end
if now < tonumber(state[3]) then return {'not_started', state[3]} end
if state[6] == '1' then return {'paused'} end
local count, newest = 0, nil
for id in string.gmatch(redis.call('HGET', KEYS[2], ARGV[2]) or '', '%d+=([^,]+)') do
  count = count + 1
  if not newest or id > newest then newest = id end
end
if count >= tonumber(state[5]) then return {'already_ordered', newest} end
local available = tonumber(state[2])
for at, n in string.gmatch(state[8], '(%d+):(%d+)') do
  if tonumber(at) > now then available = available - n end
end
if waiting == 0 and available > 0 then return {'available'} end
return {'joinable'}
