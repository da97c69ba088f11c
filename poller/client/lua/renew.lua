-- Renews the lease of a group at one feed.
-- KEYS: the state of the group.
-- ARGV: token, ttl in ms.
-- Answers 1, or 0: the lease is another's, or gone.
-- include moment
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'until', string.format('%.0f', now + ARGV[2]))
return 1
