-- Reads how much there is of a feed.
-- KEYS: state, snapshots, events, quarantine, lease, pause.
-- ARGV: how many nodes to look at, then names of fields of the state.
-- Answers the sizes, whether there is a lease, and a pause, the stream's memory, and then the fields.
local answer = {redis.call('HLEN', KEYS[2]), redis.call('XLEN', KEYS[3]), redis.call('XLEN', KEYS[4]),
  redis.call('EXISTS', KEYS[5]), redis.call('EXISTS', KEYS[6]),
  redis.call('MEMORY', 'USAGE', KEYS[3], 'SAMPLES', ARGV[1]) or 0}
table.remove(ARGV, 1)
for _, value in ipairs(redis.call('HMGET', KEYS[1], unpack(ARGV))) do answer[#answer + 1] = value end
return answer
