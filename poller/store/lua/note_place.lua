-- Writes down where a feed consumer begins, where it has no place yet.
-- KEYS: lease, state.
-- ARGV: nonce, beginning, place.
-- Answers its place, or 0 where the lease is another's.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('HSETNX', KEYS[2], 'beginning', ARGV[2])
redis.call('HSETNX', KEYS[2], 'place', ARGV[3])
return redis.call('HGET', KEYS[2], 'place')
