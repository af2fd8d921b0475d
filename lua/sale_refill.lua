-- sale_refill: adds orders that MySQL has forgotten to the outbox again, behind a closed gate. Redis holds them: their entries were
-- retired when MySQL had them.
--
-- KEYS  1 state   2 outbox   (as in sale_reserve)
-- ARGV  1 token that closed the gate   2 epoch that the reconciler has raised to
--       3.. order uid quantity slots key at, ...   at most 200 orders
-- Returns a list, its first member one of
--   ok, entry, ...   their entries, in order
--   lost             this token does not close the gate, for another reconciler took over: give up
-- Not idempotent: an order that is added twice is settled once.
local state = redis.call('HMGET', KEYS[1], 'token', 'gate')
if state[2] ~= 'closed' or state[1] ~= ARGV[1] then return {'lost'} end
local entries = {}
for i = 3, #ARGV, 6 do
  entries[#entries + 1] = redis.call('XADD', KEYS[2], '*', 'id', ARGV[i], 'uid', ARGV[i + 1], 'quantity', ARGV[i + 2], 'slots', ARGV[i + 3],
    'key', ARGV[i + 4], 'epoch', ARGV[2], 'at', ARGV[i + 5], 'trace', '')
end
return {'ok', unpack(entries)}
