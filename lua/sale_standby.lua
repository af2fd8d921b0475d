-- sale_standby: the standby line's word in a sale's state: whether a buyer may join it, and whether somebody waits in it. While
-- somebody does, reserve keeps what is available for the line.
--
-- KEYS  1 state   2 buyers   (as in reserve)
-- ARGV  1 step, then what the step takes:
--   look uid     changes nothing; returns joinable; or not_loaded, gate_closed, ended, not_started, paused, already_ordered as
--                reserve would for one unit; or available: something is, and nobody waits: order it
--   wait place   notes that somebody waits, place being the newest place that the caller knows
--   rest place   notes that nobody waits, unless a newer place was noted since the caller read this one
-- Returns a list: what look returns; for wait and rest done, or kept (there is nothing to change), or not_loaded
-- Idempotent. Places of a sale only grow, so whoever waits late and whoever rests late do no harm to a newer place. To wait is
-- possible also while the sale is being reconciled: a load keeps the newest place.
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
  return redis.error_reply('standby: no step ' .. ARGV[1])
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
