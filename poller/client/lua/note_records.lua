-- Notes how far a bootstrap has come.
-- KEYS: the state of the group, the revisions.
-- ARGV: token, 1 if a page begins (what was noted of the one before goes), how many fields of the state follow; these
--   as names and values; then records and the ids of their events, as they were handled.
-- Answers 1, or 0: the lease is another's, and nothing was written.
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return 0 end
if ARGV[2] == '1' then
  local noted = redis.call('HKEYS', KEYS[2])
  for first = 1, #noted, 1000 do
    redis.call('HDEL', KEYS[2], unpack(noted, first, math.min(first + 999, #noted)))
  end
end
local last = 3 + 2 * ARGV[3]
for at = 4, last, 2 do redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1]) end
for at = last + 1, #ARGV, 2 do redis.call('HSET', KEYS[2], ARGV[at], ARGV[at + 1]) end
return 1
