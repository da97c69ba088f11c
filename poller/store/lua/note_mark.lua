-- Writes a mark (health, handshake) of a registered subscription.
-- KEYS: registry, a hash.
-- ARGV: subscription, value, field; what its settings must hold, as JSON ('': nothing); the mark that must stand
--   there ('': any or none).
-- Answers 1, or 0 where there is no such subscription, its settings are other ones, or another mark stands there.
local registered = redis.call('HGET', KEYS[1], ARGV[1])
if not registered or not string.find(registered, ARGV[4], 1, true) then return 0 end
if ARGV[5] ~= '' and redis.call('HGET', KEYS[2], ARGV[3]) ~= ARGV[5] then return 0 end
redis.call('HSET', KEYS[2], ARGV[3], ARGV[2])
return 1
