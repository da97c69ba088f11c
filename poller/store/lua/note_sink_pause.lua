-- Writes until when a sink asked for a pause.
-- KEYS: registry, a hash.
-- ARGV: subscription, until when its sink wants nothing in ms, how long that may be in ms, the field for
--   since when.
-- Answers 1, or 0 where there is no such subscription.
-- The later moment stays, unless it is further away than a pause may be: then a wrong clock has written it.
-- include now
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
local before, latest = tonumber(redis.call('HGET', KEYS[2], ARGV[1]) or '0'), now + tonumber(ARGV[3])
local wanted = math.min(tonumber(ARGV[2]), latest)
if before < wanted or before > latest then
  redis.call('HSET', KEYS[2], ARGV[1], string.format('%.0f', wanted), ARGV[4], string.format('%.0f', now))
end
return 1
