-- Reads the live members without changing the list.
-- KEYS: roles, beats, configurations.
-- Answers the names of those that are there; names and roles in turn, and names and configurations in turn,
--   of those that are not, too.
local time = redis.call('TIME')
local now = string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
return {redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. now, '+inf'), redis.call('HGETALL', KEYS[1]),
  redis.call('HGETALL', KEYS[3])}
