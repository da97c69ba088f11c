-- Pauses a feed, unless it is paused.
-- KEYS: pause.
-- ARGV: what is kept of it.
-- Answers what was kept before, and leaves that; else nil.
local before = redis.call('GET', KEYS[1])
if not before then redis.call('SET', KEYS[1], ARGV[1]) end
return before
