-- Destroys a group at one feed, and deletes what is kept of it.
-- KEYS: the state of the group, the revisions, events.
-- ARGV: the token of this member, the group, the longest ttl in ms.
-- Answers 1, or 0: another member reads; nothing was deleted.
-- include moment
local held = redis.call('HMGET', KEYS[1], 'token', 'until')
local left = held[1] and held[1] ~= ARGV[1] and tonumber(held[2]) - now or 0
if left > 0 and left <= tonumber(ARGV[3]) then return 0 end
redis.pcall('XGROUP', 'DESTROY', KEYS[3], ARGV[2])
for at = 1, 2 do
  local fields = redis.call('HKEYS', KEYS[at])
  for first = 1, #fields, 1000 do
    redis.call('HDEL', KEYS[at], unpack(fields, first, math.min(first + 999, #fields)))
  end
end
return 1
