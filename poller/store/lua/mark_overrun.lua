-- Replaces the row of an overrun once it was published.
-- KEYS: overruns.
-- ARGV: name, the row as it was seen, the row that takes its place.
-- Answers 1, or 0 where the row is another one now.
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1
