-- outbox_group: creates the consumer group of a sale's outbox, from its first entry on, if this Redis has anything of the sale.
-- A reader that does not know yet that the sale was archived must not create its outbox again.
--
-- KEYS  1 state   2 outbox   (as in sale_reserve)
-- ARGV  1 consumer group
-- Returns a list, its first member one of
--   made, done   the group exists: since now, or since before
--   not_loaded   this Redis has nothing of the sale: ask again
-- Idempotent.
local there = redis.call('EXISTS', KEYS[1], KEYS[2])
if there == 0 then return {'not_loaded'} end
local made = redis.pcall('XGROUP', 'CREATE', KEYS[2], ARGV[1], '0', 'MKSTREAM')
if type(made) == 'table' and made.err then
  if string.find(made.err, 'BUSYGROUP', 1, true) then return {'done'} end
  return made
end
return {'made'}
