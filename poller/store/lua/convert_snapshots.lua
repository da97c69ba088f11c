-- Replaces snapshots by the same ones in a later form, with another dictionary, or without content.
-- KEYS: lease, state, snapshots, dictionaries.
-- ARGV 1-7: nonce, generation and sequence of the feed ('': any), how many dictionaries are known, the name of the field
--   for its forms, what that says now ("1" stands for no such field) and from now on; then for each snapshot: its field,
--   what that holds, the field and what it is to hold.
-- Answers OK, FENCED (the lease is another's) or STALE (the feed was reset since, or an event was published, or it has
--   other dictionaries or forms: the store has gone back, and what was replaced stands there again).
-- A snapshot that is not as it was read stays as it is: it was written since, and is never lost or written twice.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 'FENCED' end
local have = redis.call('HMGET', KEYS[2], 'generation', 'sequence', ARGV[5])
if have[1] ~= ARGV[2] or (have[2] ~= ARGV[3] and ARGV[3] ~= '') or (have[3] or '1') ~= ARGV[6] then return 'STALE' end
if redis.call('HLEN', KEYS[4]) ~= tonumber(ARGV[4]) then return 'STALE' end
if ARGV[6] ~= ARGV[7] then redis.call('HSET', KEYS[2], ARGV[5], ARGV[7]) end
for i = 8, #ARGV, 4 do
  if redis.call('HGET', KEYS[3], ARGV[i]) == ARGV[i + 1] then
    redis.call('HSET', KEYS[3], ARGV[i + 2], ARGV[i + 3])
    if ARGV[i] ~= ARGV[i + 2] then redis.call('HDEL', KEYS[3], ARGV[i]) end
  end
end
return 'OK'
