-- Deletes dead letters of a subscription.
-- KEYS: letters, letter_times.
-- ARGV: entries.
-- Answers how many there were.
redis.call('ZREM', KEYS[2], unpack(ARGV))
return redis.call('HDEL', KEYS[1], unpack(ARGV))
