-- Acquires or renews a lease.
-- KEYS: lease.
-- ARGV: nonce, ttl in ms.
-- Answers nil if this process has it now, else the ms that it still belongs to another.
-- include lease_left
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return math.max(left(KEYS[1], ARGV[2]), 0) end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return false
