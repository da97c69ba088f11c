-- Creates the group of a feed consumer if it does not exist.
-- KEYS: lease, events.
-- ARGV: nonce, group, the place behind which it begins.
-- Answers 1, or 0 where the lease is another's.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local made = redis.pcall('XGROUP', 'CREATE', KEYS[2], ARGV[2], ARGV[3], 'MKSTREAM')
if made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then return made end
return 1
