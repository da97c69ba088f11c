-- Reads the pauses that sinks asked for.
-- KEYS: a hash.
-- Answers its fields and values in turn, and the time in ms; 0 where there is nothing.
local kept = redis.call('HGETALL', KEYS[1])
if #kept == 0 then return {kept, 0} end
local time = redis.call('TIME')
return {kept, time[1] * 1000 + math.floor(time[2] / 1000)}
