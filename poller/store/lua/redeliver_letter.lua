-- Turns a dead letter into a scheduled delivery.
-- KEYS: letters, letter_times, parked.
-- ARGV: entry, the letter as it was seen, the delivery, how many may wait.
-- Answers a Moved.
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
if redis.call('HLEN', KEYS[3]) >= tonumber(ARGV[4]) then return 2 end
redis.call('HSET', KEYS[3], ARGV[1], ARGV[3])
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return 1
