-- sale_forget: takes an archived sale out of this Redis: all its keys, in one moment.
--
-- KEYS  1 state   2 orders   3 buyers   4 idem   5 outbox   (as in reserve)   6 applied   (as in load)
-- ARGV  1 token: the newest that MySQL had when it had the sale as archived
-- Returns a list, its first member one of
--   forgotten, keys   so many keys there were
--   lost, token       nothing was done: a reconciler with this newer token was here, so the sale is not archived any more
--   queued, entries   nothing was done: the outbox still holds orders, which must be settled and retired first
-- Idempotent. Only for a sale that MySQL has as archived: no reconciler brings that back.
local token = redis.call('HGET', KEYS[1], 'token')
if token and tonumber(token) > tonumber(ARGV[1]) then return {'lost', token} end
local queued = redis.call('XLEN', KEYS[5])
if queued > 0 then return {'queued', queued} end
return {'forgotten', redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6])}
