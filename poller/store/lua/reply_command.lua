-- Writes the reply to a command.
-- KEYS: orders, answer.
-- ARGV: the order's id, the answer, for how many ms it is kept, '1' where it is the last one.
-- Answers 1 where the order was waiting.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
if ARGV[4] == '1' then redis.call('HDEL', KEYS[1], ARGV[1]) end
return 1
