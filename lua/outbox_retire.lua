-- outbox_retire: removes the entries of settled orders from the outbox. Only for orders whose row in MySQL is committed.
--
-- KEYS  1 outbox
-- ARGV  1 consumer group   2.. entry ids, at most 1,000
-- Returns how many entries there were. Idempotent: ids without an entry do no harm.
redis.call('XACK', KEYS[1], ARGV[1], unpack(ARGV, 2))
return redis.call('XDEL', KEYS[1], unpack(ARGV, 2))
