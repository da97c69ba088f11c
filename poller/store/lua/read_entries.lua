-- Reads entries of a stream for a consumer group, under the lease.
-- KEYS: lease, events.
-- ARGV: nonce, group, consumer, the id to read after ('>': what is unread), how many at most.
-- Answers as XREADGROUP, or 0 where the lease is another's.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.pcall('XREADGROUP', 'GROUP', ARGV[2], ARGV[3], 'COUNT', ARGV[5], 'STREAMS', KEYS[2], ARGV[4])
