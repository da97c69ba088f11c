-- Begins a replay of a feed for a subscription.
-- KEYS: state, events.
-- ARGV: id, after, to, the first entry, which is to be there, and the group, likewise ('': neither is looked for).
-- Answers 1, 0 where one is under way, 2 where that entry is gone, or 3 where the group is.
local function has_group()
  local groups = redis.pcall('XINFO', 'GROUPS', KEYS[2])
  for _, group in ipairs(groups.err and {} or groups) do
    if group[2] == ARGV[5] then return true end
  end
  return false
end

if ARGV[5] ~= '' and not has_group() then return 3 end
if redis.call('HEXISTS', KEYS[1], 'replay') == 1 then return 0 end
if ARGV[4] ~= '' and #redis.call('XRANGE', KEYS[2], ARGV[4], ARGV[4]) == 0 then return 2 end
redis.call('HSET', KEYS[1], 'replay', ARGV[1], 'replay_after', ARGV[2], 'replay_to', ARGV[3])
return 1
