-- Releases the lease of a group at one feed.
-- KEYS: the state of the group.
-- ARGV: token.
-- Answers 1 if it was this member's.
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return 0 end
redis.call('HDEL', KEYS[1], 'token', 'until', 'name')
return 1
