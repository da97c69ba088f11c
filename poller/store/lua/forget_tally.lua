-- Forgets a complete tally that was announced, unless it is another one by now.
-- KEYS: erased.
-- ARGV: the field of the tally, the tally.
if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then redis.call('HDEL', KEYS[1], ARGV[1]) end
