-- Reads what shows whether the registry of subscriptions has changed, or a part of it is lost.
-- KEYS: version, parked, changes, and the hashes that change with the version.
-- Answers the version and the number of parked (nil: none), the mark of the last change ('' for none), and how many
--   fields each hash has.
local numbers = redis.call('MGET', KEYS[1], KEYS[2])
local answer = {numbers[1], numbers[2], redis.call('GETRANGE', KEYS[3], 0, 15)}
for i = 4, #KEYS do answer[i] = redis.call('HLEN', KEYS[i]) end
return answer
