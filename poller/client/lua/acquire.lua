-- Acquires or renews the lease of a group at one feed, and creates the group if it does not exist.
-- KEYS: the state of the group, events.
-- ARGV: token ('': members share the feed, there is no lease), ttl in ms, the member's name, the group, the longest
--   ttl, the id after which a new group begins ('': it is not created), the last id that this member knows of ('').
-- A group that was destroyed begins again after the last entry that is known to be acknowledged; if the stream does not
--   reach that far, it is another one and is read from its beginning.
-- Answers HELD, ms left, the holder; or OK, 1 if this member had the lease already, 1 if there is a group, the state.
-- include moment
local held = redis.call('HMGET', KEYS[1], 'token', 'until', 'name', 'place')
if ARGV[1] ~= '' then
  local left = held[1] and held[1] ~= ARGV[1] and tonumber(held[2]) - now or 0
  if left > 0 and left <= tonumber(ARGV[5]) then return {'HELD', string.format('%.0f', left), held[3]} end
end
local function padded(id)
  local ms, number = string.match(id, '^(%d+)%-?(%d*)$')
  return string.rep('0', 20 - #ms) .. ms .. string.rep('0', 20 - #number) .. number
end
local exists, last, stream = 0, '0-0', redis.pcall('XINFO', 'STREAM', KEYS[2])
if not stream.err then
  for at = 1, #stream, 2 do
    if stream[at] == 'last-generated-id' then last = stream[at + 1] end
  end
  for _, one in ipairs(redis.call('XINFO', 'GROUPS', KEYS[2])) do
    for at = 1, #one, 2 do
      if one[at] == 'name' and one[at + 1] == ARGV[4] then exists = 1 end
    end
  end
end
local after = held[4] or ARGV[7]
if after == '' then after = ARGV[6] end
if exists == 0 and after ~= '' then
  if after == '$' then after = last end
  if padded(after) > padded(last) then
    after = '0-0'
    redis.call('HDEL', KEYS[1], 'sequence')
  end
  redis.call('XGROUP', 'CREATE', KEYS[2], ARGV[4], after, 'MKSTREAM')
  redis.call('HSET', KEYS[1], 'read', after, 'place', after)
  exists = 1
end
if ARGV[1] ~= '' then
  redis.call('HSET', KEYS[1], 'token', ARGV[1], 'name', ARGV[3], 'until', string.format('%.0f', now + ARGV[2]))
end
return {'OK', held[1] == ARGV[1] and 1 or 0, exists, redis.call('HGETALL', KEYS[1])}
