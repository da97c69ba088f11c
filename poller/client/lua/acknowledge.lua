-- Acknowledges entries, and notes how far the group has come.
-- KEYS: the state of the group, events.
-- ARGV: token ('': members share the feed), the group, the last entry up to which all are acknowledged, its sequence
--   ('' each: as it was), the entries.
-- Where members share the feed, it has come up to the first entry that is not acknowledged.
-- Answers 1, or 0: the lease is another's, and nothing was written.
local function before(id)
  local ms, number = string.match(id, '^(%d+)%-(%d+)$')
  if number ~= '0' then return ms .. '-' .. string.format('%.0f', tonumber(number) - 1) end
  return string.format('%.0f', tonumber(ms) - 1) .. '-18446744073709551615'
end
if ARGV[1] ~= '' and redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return 0 end
for first = 5, #ARGV, 1000 do
  redis.call('XACK', KEYS[2], ARGV[2], unpack(ARGV, first, math.min(first + 999, #ARGV)))
end
if ARGV[1] == '' and #ARGV > 4 then
  local held = redis.pcall('XPENDING', KEYS[2], ARGV[2], '-', '+', 1)
  if not held.err and held[1] then ARGV[3] = before(held[1][1]) end
end
if ARGV[3] ~= '' then redis.call('HSET', KEYS[1], 'place', ARGV[3]) end
if ARGV[4] ~= '' then redis.call('HSET', KEYS[1], 'sequence', ARGV[4]) end
return 1
