-- Takes the erasure of a record over from the process that had begun one, if there is any.
-- KEYS: erased.
-- ARGV: the record's key in queues of deliveries, the nonce of this erasure, now in ms.
-- Answers the stored tally, or nil. What another erasure writes from now on is refused.
redis.call('HSET', KEYS[1], 'erasing:' .. ARGV[1], ARGV[2] .. ' ' .. ARGV[3])
return redis.call('HGET', KEYS[1], 'unannounced:' .. ARGV[1])
