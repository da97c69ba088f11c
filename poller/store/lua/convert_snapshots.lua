-- Replaces snapshots of the first form by the same ones in the second.
-- KEYS: lease, state, snapshots.
-- ARGV 1-5: nonce, generation and sequence of the feed, the name of the field for its forms, and what that says from now
--   on; then for each snapshot: its field, what that holds, the field and what it is to hold.
-- Answers OK, FENCED (the lease is another's) or STALE (the feed was reset since, or an event was published).
-- A snapshot that is not as it was read stays as it is: it was written since, and is never lost or written twice.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 'FENCED' end
local have = redis.call('HMGET', KEYS[2], 'generation', 'sequence')
if have[1] ~= ARGV[2] or have[2] ~= ARGV[3] then return 'STALE' end
redis.call('HSET', KEYS[2], ARGV[4], ARGV[5])
for i = 6, #ARGV, 4 do
  if redis.call('HGET', KEYS[3], ARGV[i]) == ARGV[i + 1] then
    redis.call('HSET', KEYS[3], ARGV[i + 2], ARGV[i + 3])
    if ARGV[i] ~= ARGV[i + 2] then redis.call('HDEL', KEYS[3], ARGV[i]) end
  end
end
return 'OK'
