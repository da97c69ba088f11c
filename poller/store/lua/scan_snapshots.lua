-- Reads some snapshots of a feed, and which process of the server has read them: a cursor says nothing to another one.
-- KEYS: snapshots.
-- ARGV: cursor, about how many.
-- Answers the run id of the server, the cursor to go on with ('0': that was all), and snapshots as a flat list.
local answer = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
return {string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') or '', answer[1], answer[2]}
