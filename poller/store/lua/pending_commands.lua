-- Reads the commands without a final reply.
-- KEYS: orders.
-- Answers its fields and values in turn.
return redis.call('HGETALL', KEYS[1])
