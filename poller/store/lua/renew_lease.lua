-- Renews or releases a lease.
-- KEYS: lease.
-- ARGV: nonce, lease ttl in ms (0 lets it go).
-- Answers 1 if this process had it, else 0.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then redis.call('DEL', KEYS[1]) else redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 1
