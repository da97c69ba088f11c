-- Reads entries through a group: what no member has read, or what this member has not acknowledged.
-- KEYS: the state of the group, events.
-- ARGV: token ('': members share the feed), the group, the member's name, '>' or the id to read after, how many at
--   most, the last entry that the group is known to have read ('': that is not checked).
-- Answers LOST, NOGROUP, BEHIND (the group has read other entries than known), or OK, the stream's last id, the entries.
if ARGV[1] ~= '' and redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return {'LOST'} end
if ARGV[6] ~= '' and redis.call('HGET', KEYS[1], 'read') ~= ARGV[6] then return {'BEHIND'} end
local found = redis.pcall('XREADGROUP', 'GROUP', ARGV[2], ARGV[3], 'COUNT', ARGV[5], 'STREAMS', KEYS[2], ARGV[4])
if found and found.err then
  if string.find(found.err, 'NOGROUP', 1, true) then return {'NOGROUP'} end
  return found
end
local entries, last = found and found[1][2] or {}, '0-0'
if #entries > 0 and ARGV[4] == '>' then
  last = entries[#entries][1]
  if ARGV[1] ~= '' then redis.call('HSET', KEYS[1], 'read', last) end
end
local stream = redis.call('XINFO', 'STREAM', KEYS[2])
for at = 1, #stream, 2 do
  if stream[at] == 'last-generated-id' then last = stream[at + 1] end
end
return {'OK', last, entries}
