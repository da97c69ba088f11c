-- Leaves an operator's command in a feed's state for its next round.
-- KEYS: state.
-- ARGV: the field to set, the field that must be there, and if the command has a limit: its field, the field it is from.
-- Answers 1 where it was.
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], '1')
if ARGV[3] then
  local limit = redis.call('HGET', KEYS[1], ARGV[4])
  if limit then
    redis.call('HSET', KEYS[1], ARGV[3], limit)
  else
    redis.call('HDEL', KEYS[1], ARGV[3])
  end
end
return 1
