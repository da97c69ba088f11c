-- Writes a mark (health, handshake) of a registered subscription.
-- KEYS: registry, a hash.
-- ARGV: subscription, value, field.
-- Answers 1, or 0 where there is no such subscription.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('HSET', KEYS[2], ARGV[3], ARGV[2])
return 1
