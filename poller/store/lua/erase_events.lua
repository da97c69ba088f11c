-- Deletes events from a stream, and acknowledges them in each of its consumer groups.
-- KEYS: events, erased events.
-- ARGV: how many numbers of erased events are kept; then for each event the id of its entry and its sequence number ('':
--   unknown).
-- Answers how many were there, and how many pending deliveries of consumer groups were acknowledged.
-- An entry that is deleted and not acknowledged would be handed out without its content.
local ids, gone, acked = {}, 0, 0
for i = 2, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
local groups = redis.pcall('XINFO', 'GROUPS', KEYS[1])
for _, group in ipairs(groups.err and {} or groups) do
  for i = 1, #group, 2 do
    if group[i] == 'name' then acked = acked + redis.call('XACK', KEYS[1], group[i + 1], unpack(ids)) end
  end
end
for i = 2, #ARGV, 2 do
  if redis.call('XDEL', KEYS[1], ARGV[i]) == 1 then
    gone = gone + 1
    if ARGV[i + 1] ~= '' then redis.call('ZADD', KEYS[2], ARGV[i + 1], ARGV[i + 1]) end
  end
end
local count = redis.call('ZCARD', KEYS[2])
if count > tonumber(ARGV[1]) then redis.call('ZREMRANGEBYRANK', KEYS[2], 0, count - tonumber(ARGV[1]) - 1) end
return {gone, acked}
