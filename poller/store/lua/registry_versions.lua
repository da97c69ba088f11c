-- Reads the numbers that show whether the registry of subscriptions has changed.
-- KEYS: version, parked, registry.
-- Answers the version and the number of parked (nil: none), and how many subscriptions there are.
local numbers = redis.call('MGET', KEYS[1], KEYS[2])
return {numbers[1], numbers[2], redis.call('HLEN', KEYS[3])}
