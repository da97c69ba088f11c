-- Writes a mark (health, handshake) of a registered subscription.
-- KEYS: registry, a hash.
-- ARGV: subscription, value, field; and what its settings must hold, as JSON ('': nothing).
-- Answers 1, or 0 where there is no such subscription, or its settings are other ones.
local registered = redis.call('HGET', KEYS[1], ARGV[1])
if not registered or not string.find(registered, ARGV[4], 1, true) then return 0 end
redis.call('HSET', KEYS[2], ARGV[3], ARGV[2])
return 1
