-- Resumes a feed.
-- KEYS: pause.
-- Answers what was kept, or nil.
local before = redis.call('GET', KEYS[1])
redis.call('DEL', KEYS[1])
return before
