-- Renews or releases a lease.
-- KEYS: lease; of a feed consumer also its state.
-- ARGV: nonce, lease ttl in ms (0 lets it go).
-- Answers 0 if this process did not have it; else 1, or of a feed consumer what was settled last ('-' nothing).
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then redis.call('DEL', KEYS[1]) else redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
if KEYS[2] then return redis.call('HGET', KEYS[2], 'settled') or '-' end
return 1
