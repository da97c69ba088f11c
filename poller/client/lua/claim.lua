-- Gives this member entries that others, or it, have read and not acknowledged, the oldest first.
-- KEYS: the state of the group, events.
-- ARGV: token ('': members share the feed), the group, the member's name, for how many ms they rested, the id to begin
--   at, how many at most.
-- Answers LOST, NOGROUP, or OK, the id to go on at ('0-0': there are no more), the entries, the ids of entries whose
--   content is gone; these are acknowledged.
if ARGV[1] ~= '' and redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return {'LOST'} end
local found = redis.pcall('XAUTOCLAIM', KEYS[2], ARGV[2], ARGV[3], ARGV[4], ARGV[5], 'COUNT', ARGV[6])
if found.err then
  if string.find(found.err, 'NOGROUP', 1, true) then return {'NOGROUP'} end
  return found
end
return {'OK', found[1], found[2], found[3] or {}}
