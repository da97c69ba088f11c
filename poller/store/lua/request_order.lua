-- Leaves an operator's command in a feed's state for its next round.
-- KEYS: state.
-- ARGV: the field to set, the field that must be there.
-- Answers 1 where it was.
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], '1')
return 1
