-- sale_define: applies a newer definition of a sale: window, limit, pause, close, tranches. It leaves the stock as it is.
--
-- KEYS  1 state
-- ARGV  1 version   2 starts   3 ends   4 limit   5 paused 0|1   6 closed 0|1   7 later "at:units at:units" in ms
-- Returns a list of one word
--   defined      the definition is applied
--   older        a definition at least as new is here
--   not_loaded   the sale is not in this Redis: loading it will bring the definition
-- Idempotent by version.
local version = redis.call('HGET', KEYS[1], 'version')
if not version then return {'not_loaded'} end
if tonumber(version) >= tonumber(ARGV[1]) then return {'older'} end
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'starts', ARGV[2], 'ends', ARGV[3], 'limit', ARGV[4], 'paused', ARGV[5],
  'closed', ARGV[6], 'later', ARGV[7])
return {'defined'}
