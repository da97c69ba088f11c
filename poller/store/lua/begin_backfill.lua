-- Begins a backfill of a feed for a subscription.
-- KEYS: state, events, the feed's state, snapshots.
-- ARGV: id, and the group, which is to be there.
-- Answers a BackfillStart, and how many records there are.
local function has_group()
  local groups = redis.pcall('XINFO', 'GROUPS', KEYS[2])
  for _, group in ipairs(groups.err and {} or groups) do
    if group[2] == ARGV[2] then return true end
  end
  return false
end

if not has_group() then return {2, 0} end
if redis.call('HEXISTS', KEYS[1], 'backfill') == 1 then return {0, 0} end
if redis.call('HEXISTS', KEYS[3], 'generation') == 0 then return {3, 0} end
local live = redis.call('HLEN', KEYS[4]) - (tonumber(redis.call('HGET', KEYS[3], 'tombstones') or '') or 0)
redis.call('HSET', KEYS[1], 'backfill', ARGV[1], 'backfill_at', '', 'backfill_done', 0, 'backfill_total', live)
return {1, live}
