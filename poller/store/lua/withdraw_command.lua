-- Deletes a command that no daemon has taken up.
-- KEYS: orders, answer.
-- ARGV: the order's id.
-- Answers 1 where no process handles it, and it waits no more.
if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
return 1
