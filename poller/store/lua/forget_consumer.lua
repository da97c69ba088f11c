-- Deletes what a removed subscription has at one feed.
-- KEYS: the feed's events and its grace periods, and the keys of the pair.
-- ARGV: the group, and the subscription.
-- Answers 1.
if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('XGROUP', 'DESTROY', KEYS[1], ARGV[1]) end
redis.call('HDEL', KEYS[2], ARGV[2])
redis.call('DEL', unpack(KEYS, 3))
return 1
