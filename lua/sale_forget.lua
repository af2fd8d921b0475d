-- sale_forget: removes all keys of an archived sale from this Redis at once.
--
-- KEYS  1 state   2 orders   3 buyers   4 idem   5 outbox   (as in sale_reserve)   6 applied   (as in sale_load)
--       7 gone   (as in sale_release)
-- ARGV  1 token: the newest in MySQL when the sale was read there as archived
-- Returns a list, its first member one of
--   forgotten, keys   this many keys were removed
--   lost, token       nothing was done: a reconciler with this newer token was here, so the sale is no longer archived
--   queued, entries   nothing was done: the outbox still holds orders, which must be settled and retired first
-- Idempotent. Only for a sale that is archived in MySQL: no reconciler loads it again.
local token = redis.call('HGET', KEYS[1], 'token')
if token and tonumber(token) > tonumber(ARGV[1]) then return {'lost', token} end
local queued = redis.call('XLEN', KEYS[5])
if queued > 0 then return {'queued', queued} end
return {'forgotten', redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7])}
