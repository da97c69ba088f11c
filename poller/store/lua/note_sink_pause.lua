-- Writes until when a sink asked for a pause.
-- KEYS: registry, a hash.
-- ARGV: subscription, for how long from now its sink wants nothing in ms, how long that may be in ms, the field for
--   since when; what its settings must hold, as JSON ('': nothing).
-- Answers 1, or 0 where there is no such subscription, or its settings are other ones.
-- The later moment stays, unless it is further away than a pause may be, or the pause begins in what is still to come: then a wrong clock has written it. What is no number is none.
-- include now
local registered = redis.call('HGET', KEYS[1], ARGV[1])
if not registered or not string.find(registered, ARGV[5], 1, true) then return 0 end
local before, latest = tonumber(redis.call('HGET', KEYS[2], ARGV[1]) or '0') or 0, now + tonumber(ARGV[3])
local wanted = math.min(now + tonumber(ARGV[2]), latest)
local since = tonumber(redis.call('HGET', KEYS[2], ARGV[4]) or '0') or 0
if before < wanted or before > latest or since > now + 1000 then
  redis.call('HSET', KEYS[2], ARGV[1], string.format('%.0f', wanted), ARGV[4], string.format('%.0f', now))
end
return 1
