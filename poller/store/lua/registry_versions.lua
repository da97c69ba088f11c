-- Reads the numbers that show whether the registry of subscriptions has changed, or a part of it is lost.
-- KEYS: version, parked, and the hashes that change with the version.
-- Answers the version and the number of parked (nil: none), and how many fields each hash has.
local numbers = redis.call('MGET', KEYS[1], KEYS[2])
local answer = {numbers[1], numbers[2]}
for i = 3, #KEYS do answer[i] = redis.call('HLEN', KEYS[i]) end
return answer
