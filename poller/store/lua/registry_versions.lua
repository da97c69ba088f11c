-- Reads what shows whether the registry of subscriptions has changed, or a part of it is lost.
-- KEYS: version, parked, changes, and the hashes that change with the version.
-- Answers the version and the number of parked (nil: none), the mark of the last change ('' for none), and how many
--   fields each hash has.
local found = redis.call('MGET', KEYS[1], KEYS[2], KEYS[3])
local answer = {found[1], found[2], string.sub(found[3] or '', 1, 16)}
for i = 4, #KEYS do answer[i] = redis.call('HLEN', KEYS[i]) end
return answer
