-- Reads what the store holds of a feed.
-- KEYS: state, snapshots, events, quarantine, listings, lease, pause.
-- ARGV: of how many nodes of the stream the memory of all is estimated.
-- Answers the state's fields and values, the number of snapshots, the length of the stream, its memory and the id of its
--   first entry (false: none), the numbers of quarantined records and of listings, the lease (false: free) with the
--   milliseconds that it lasts, and the pause (false: none).
local first = redis.call('XRANGE', KEYS[3], '-', '+', 'COUNT', 1)[1]
return {redis.call('HGETALL', KEYS[1]), redis.call('HLEN', KEYS[2]), redis.call('XLEN', KEYS[3]),
  redis.call('MEMORY', 'USAGE', KEYS[3], 'SAMPLES', ARGV[1]) or 0, first and first[1] or false,
  redis.call('XLEN', KEYS[4]), redis.call('HLEN', KEYS[5]), redis.call('GET', KEYS[6]),
  redis.call('PTTL', KEYS[6]), redis.call('GET', KEYS[7])}
