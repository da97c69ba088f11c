-- Ends a feed consumer whose subscription lists the feed no more, unless events wait and the grace has not passed.
-- Its position stays, should the feed be listed again.
-- KEYS: events, the feed's grace periods, and the pair's lease, state and parked deliveries.
-- ARGV: the group; the subscription; since when it does not list the feed, which tells two such times apart; the entry
--   behind which it begins where it has neither a group nor a place ('' nowhere); now, and how much of the time since
--   the last look may count, and the grace, all in milliseconds.
-- Answers a Remainder, and how many events wait or were dropped: the unread ones are counted up to 1000.
-- A grace period is ARGV[3], and then when the last look was, what was counted so far, and the stream's last entry at
--   the first look; or `ended`.
if redis.call('EXISTS', KEYS[3]) == 1 then return {'busy', 0} end
local groups = redis.pcall('XINFO', 'GROUPS', KEYS[1])
if groups.err then
  if not string.find(tostring(groups.err), 'no such key') then return groups end
  groups = {}
end
local group
for _, one in ipairs(groups) do
  local found = {}
  for at = 1, #one, 2 do found[one[at]] = one[at + 1] end
  if found['name'] == ARGV[1] then group = found end
end
-- On a server that is out of memory nothing is noted: then what waits is kept longer.
local function note(text)
  local noted = redis.pcall('HSET', KEYS[2], ARGV[2], ARGV[3] .. ' ' .. text)
  return type(noted) ~= 'table' or not noted.err
end
local after = ARGV[4]
if group then
  after = group['last-delivered-id']
elseif after == '' or redis.call('HEXISTS', KEYS[4], 'place') == 1 then
  note('ended')
  return {'none', 0}
end
local period = redis.call('HGET', KEYS[2], ARGV[2]) or ''
local since, seen, counted, last = string.match(period, '^(%S+) (%d+) (%d+) (%S+)$')
if since == ARGV[3] then
  counted = counted + math.max(0, math.min(ARGV[5] - seen, ARGV[6] + 0))
else
  if not group and period == ARGV[3] .. ' ended' then return {'none', 0} end
  local newest = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
  counted, last = 0, newest and newest[1] or '0-0'
end
local count = #redis.call('XRANGE', KEYS[1], '(' .. after, last, 'COUNT', 1000) + redis.call('HLEN', KEYS[5])
if group then count = count + group['pending'] end
local waits = count > 0 or redis.call('HEXISTS', KEYS[4], 'replay') == 1
  or redis.call('HEXISTS', KEYS[4], 'backfill') == 1
if waits and counted < ARGV[7] + 0 then
  note(ARGV[5] .. ' ' .. string.format('%.0f', counted) .. ' ' .. last)
  return {'waits', count}
end
if not note('ended') and not group then return {'waits', count} end
if group then
  if not waits then redis.call('HSET', KEYS[4], 'place', group['last-delivered-id']) end
  redis.call('XGROUP', 'DESTROY', KEYS[1], ARGV[1])
end
redis.call('DEL', KEYS[5])
redis.call('HDEL', KEYS[4], 'replay', 'replay_after', 'replay_to')
redis.call('HDEL', KEYS[4], 'backfill', 'backfill_at', 'backfill_done', 'backfill_total')
return {count == 0 and not group and 'none' or 'ended', count}
