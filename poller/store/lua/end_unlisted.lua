-- Ends the group of a subscription that does not list its feed any more. Its position stays, should it list it again.
-- KEYS: events, and the pair's lease, state and parked deliveries.
-- ARGV: the group; the last entry that may wait ('+': any); '1' where what waits is dropped, else ''.
-- Answers a Remainder, and how many events wait or were dropped: the unread ones are counted up to 1000.
if redis.call('EXISTS', KEYS[2]) == 1 then return {'busy', 0} end
local groups = redis.pcall('XINFO', 'GROUPS', KEYS[1])
if groups.err then
  if not string.find(tostring(groups.err), 'no such key') then return groups end
  return {'none', 0}
end
local group
for _, one in ipairs(groups) do
  local found = {}
  for at = 1, #one, 2 do found[one[at]] = one[at + 1] end
  if found['name'] == ARGV[1] then group = found end
end
if not group then return {'none', 0} end
local unread = redis.call('XRANGE', KEYS[1], '(' .. group['last-delivered-id'], ARGV[2], 'COUNT', 1000)
local count = #unread + group['pending'] + redis.call('HLEN', KEYS[4])
local waits = count > 0 or redis.call('HEXISTS', KEYS[3], 'replay') == 1
if waits and ARGV[3] == '' then return {'waits', count} end
if not waits then redis.call('HSET', KEYS[3], 'place', group['last-delivered-id']) end
redis.call('XGROUP', 'DESTROY', KEYS[1], ARGV[1])
redis.call('DEL', KEYS[4])
redis.call('HDEL', KEYS[3], 'replay', 'replay_after', 'replay_to')
return {'ended', count}
