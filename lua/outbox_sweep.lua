-- outbox_sweep: removes consumers of an outbox's group that hold nothing and have been idle for long.
--
-- KEYS  1 outbox
-- ARGV  1 consumer group   2 how long, in milliseconds   3.. names to keep
-- Returns how many were removed. It does no harm to a consumer that is only idle: its next read creates it again.
-- It is a script because a consumer that got an entry between the look and the removal would lose it.
local keep = {}
for i = 3, #ARGV do keep[ARGV[i]] = true end
local n = 0
for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local c = {}
  for i = 1, #consumer, 2 do c[consumer[i]] = consumer[i + 1] end
  if c.pending == 0 and c.idle >= tonumber(ARGV[2]) and not keep[c.name] then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], c.name)
    n = n + 1
  end
end
return n
