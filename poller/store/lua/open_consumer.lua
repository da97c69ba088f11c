-- Creates the group of a feed consumer if it does not exist.
-- KEYS: lease, events, state.
-- ARGV: nonce, group, and beginning and place, which are stored where none are yet ('' for no place: neither).
-- Answers 1, or 0 where the lease is another's.
-- The place is written before the group exists, so that a group that is lost early has a position, too.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[4] ~= '' then
  redis.call('HSETNX', KEYS[3], 'beginning', ARGV[3])
  redis.call('HSETNX', KEYS[3], 'place', ARGV[4])
end
local place = redis.call('HGET', KEYS[3], 'place') or '0-0'
local made = redis.pcall('XGROUP', 'CREATE', KEYS[2], ARGV[2], place, 'MKSTREAM')
if made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then return made end
return 1
