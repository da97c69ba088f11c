-- Stores or forgets the tally of an erasure, unless another erasure of the record has begun since.
-- KEYS: erased.
-- ARGV: the record's key in queues of deliveries, the nonce of this erasure, the tally ('': forget it), and '1' if this
--   erasure has ended.
-- Answers 1; 0, and nothing is written: another erasure has taken it over.
local holder = redis.call('HGET', KEYS[1], 'erasing:' .. ARGV[1]) or ''
if (string.match(holder, '^%S+') or '') ~= ARGV[2] then return 0 end
if ARGV[3] == '' then redis.call('HDEL', KEYS[1], 'unannounced:' .. ARGV[1])
else redis.call('HSET', KEYS[1], 'unannounced:' .. ARGV[1], ARGV[3]) end
if ARGV[4] == '1' then redis.call('HDEL', KEYS[1], 'erasing:' .. ARGV[1]) end
return 1
