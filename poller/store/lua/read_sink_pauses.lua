-- Reads the pauses that sinks asked for.
-- KEYS: a hash.
-- Answers its fields and values in turn, and the time in ms.
-- include now
return {redis.call('HGETALL', KEYS[1]), now}
