-- Deletes all keys of a feed, its lease included.
-- KEYS: the feed's lease, then all of its others.
-- ARGV: the nonce that proves the lease.
-- Answers 1 if this process had it, else 0.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
for _, key in ipairs(KEYS) do redis.call('UNLINK', key) end
return 1
