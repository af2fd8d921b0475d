-- outbox_skipped: finds skipped entries: the group has read past them, but no consumer holds them. It makes them pending with
-- one consumer, as if they had been delivered to it now. Otherwise they would never be delivered.
-- They come from a Redis that died while it wrote a script's effects to its file. When started again it takes up only the
-- first of these effects: an entry that came back after later ones were read, or an XACK without its XDEL.
--
-- KEYS  1 outbox
-- ARGV  1 consumer group   2 consumer   3 after this entry id, or "-"   4 how old an entry must be, in milliseconds
--       5 how many entries to look at, at most
-- Returns a list: the id to continue after, "-" if there is nothing more to look at; then the ids that were found.
-- Idempotent.
local last
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local g = {}
  for i = 1, #group, 2 do g[group[i]] = group[i + 1] end
  if g.name == ARGV[1] then last = g['last-delivered-id'] end
end
local time = redis.call('TIME')
local before = time[1] * 1000 + math.floor(time[2] / 1000) - tonumber(ARGV[4])
if not last or before < 0 then return {'-'} end
local ms, n = string.match(last, '^(%d+)-(%d+)$')
ms, n = tonumber(ms), tonumber(n)
local from = ARGV[3] == '-' and '-' or '(' .. ARGV[3]
local found, seen = {}, 0
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], from, string.format('%.0f', before), 'COUNT', ARGV[5])) do
  local id = entry[1]
  local m, s = string.match(id, '^(%d+)-(%d+)$')
  m, s = tonumber(m), tonumber(s)
  if m > ms or m == ms and s > n then return {'-', unpack(found)} end
  if #redis.call('XPENDING', KEYS[1], ARGV[1], id, id, '1') == 0 then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], '0', id, 'FORCE', 'JUSTID')
    found[#found + 1] = id
  end
  from, seen = id, seen + 1
end
if seen < tonumber(ARGV[5]) then from = '-' end
return {from, unpack(found)}
