-- Deletes what a removed subscription has at one feed.
-- KEYS: the feed's events, and the keys of the pair.
-- ARGV: the group.
-- Answers 1.
if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('XGROUP', 'DESTROY', KEYS[1], ARGV[1]) end
redis.call('DEL', unpack(KEYS, 2))
return 1
