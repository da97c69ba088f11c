-- Reads the live members, and those that have fallen silent a short time ago, without changing the list.
-- KEYS: roles, beats, configurations.
-- Answers the names of those that are there, and of the silent ones; names and roles in turn, and names and
--   configurations in turn, of others, too.
local time = redis.call('TIME')
local now = string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
return {redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. now, '+inf'), redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now),
  redis.call('HGETALL', KEYS[1]), redis.call('HGETALL', KEYS[3])}
