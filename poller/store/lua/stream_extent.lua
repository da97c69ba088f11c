-- Reads how large a stream is, and its overruns: what a regular look at it needs.
-- KEYS: events, overruns.
-- ARGV: of how many nodes of the stream the memory of all is estimated.
-- Answers the length of the stream, its memory, the id of its first entry ('': none), and the overruns as a flat list of
--   names and rows.
local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
return {redis.call('XLEN', KEYS[1]), redis.call('MEMORY', 'USAGE', KEYS[1], 'SAMPLES', ARGV[1]) or 0,
  first and first[1] or '', redis.call('HGETALL', KEYS[2])}
