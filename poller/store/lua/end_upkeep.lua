-- Notes that all snapshots of a feed were looked at, and empties the dictionaries that none of them names any more.
-- KEYS: lease, state, dictionaries.
-- ARGV: nonce, generation, how many dictionaries were known, now in ms; then the numbers of the dictionaries.
-- Answers OK, FENCED (the lease is another's) or STALE (the feed was reset since, or has another dictionary).
-- A dictionary keeps its field, so that their count stays: a process that knows only this one can commit nothing.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 'FENCED' end
if redis.call('HGET', KEYS[2], 'generation') ~= ARGV[2] then return 'STALE' end
if redis.call('HLEN', KEYS[3]) ~= tonumber(ARGV[3]) then return 'STALE' end
for i = 5, #ARGV do redis.call('HSET', KEYS[3], ARGV[i], '') end
redis.call('HSET', KEYS[2], 'upkeep_at', ARGV[4])
return 'OK'
