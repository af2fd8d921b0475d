-- outbox_group: makes the consumer group of a sale's outbox, from its first entry on, where there is anything of the sale. A
-- reader that has not heard yet that a sale was archived must not make its outbox anew.
--
-- KEYS  1 state   2 outbox   (as in reserve)
-- ARGV  1 consumer group
-- Returns a list, its first member one of
--   made, done   the group is there: since now, or was before
--   not_loaded   nothing of the sale is in this Redis: ask again
-- Idempotent.
local there = redis.call('EXISTS', KEYS[1], KEYS[2])
if there == 0 then return {'not_loaded'} end
local made = redis.pcall('XGROUP', 'CREATE', KEYS[2], ARGV[1], '0', 'MKSTREAM')
if type(made) == 'table' and made.err then
  if string.find(made.err, 'BUSYGROUP', 1, true) then return {'done'} end
  return made
end
return {'made'}
