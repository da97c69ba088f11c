-- Keeps the entries that a member works on from being claimed by others.
-- KEYS: events.
-- ARGV: the group, the member's name, how many at most.
-- Answers how many there are.
local held = redis.pcall('XPENDING', KEYS[1], ARGV[1], '-', '+', ARGV[3], ARGV[2])
if held.err or #held == 0 then return 0 end
local entries = {}
for at, one in ipairs(held) do entries[at] = one[1] end
for first = 1, #entries, 500 do
  local last = math.min(first + 499, #entries)
  local claim = {KEYS[1], ARGV[1], ARGV[2], 0}
  for at = first, last do claim[#claim + 1] = entries[at] end
  claim[#claim + 1] = 'JUSTID'
  redis.call('XCLAIM', unpack(claim))
end
return #entries
