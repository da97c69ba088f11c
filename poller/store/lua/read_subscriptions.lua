-- Reads the whole registry of subscriptions at one instant.
-- KEYS: version, changes, and the hashes.
-- Answers version and changes ('' for none), and of each hash its fields and values in turn. A script and no MULTI,
--   for a server that is out of memory takes none of that, not even to read.
local answer = {redis.call('GET', KEYS[1]) or '', redis.call('GET', KEYS[2]) or ''}
for i = 3, #KEYS do answer[i] = redis.call('HGETALL', KEYS[i]) end
local time = redis.call('TIME')
answer[#KEYS + 1] = time[1] * 1000 + math.floor(time[2] / 1000)
return answer
