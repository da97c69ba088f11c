-- Reads what some subscriptions have not delivered of one feed.
-- KEYS: events, the feed's state, then for each subscription its parked deliveries, letters, state and lease.
-- ARGV: the groups, then for each the entry after which it begins where it has neither a group nor a place yet ('' where
--   what waits for it is not to be counted then).
-- Answers the sequence, then for each: whether there is a group or something that waits for it to begin, its lag as
--   the server counts it, its pending entries, the sequence of the first entry that it has not read ('' where there is none, '?' where that is
--   not known), when the first that is not delivered was published ('' none), the numbers of parked
--   deliveries, letters and lost events, the lease (false: free), and the id of the backfill, its records done and in
--   all ('': there is none).
local known, groups = {}, redis.pcall('XINFO', 'GROUPS', KEYS[1])
if groups.err then
  if not string.find(tostring(groups.err), 'no such key') then return groups end
else
  for _, one in ipairs(groups) do
    local group = {}
    for at = 1, #one, 2 do group[one[at]] = one[at + 1] end
    known[group['name']] = group
  end
end
local oldest
local function seen(entry)
  local ms = tonumber(string.match(entry, '^%d+'))
  if ms < oldest then oldest = ms end
end
local answer = {redis.call('HGET', KEYS[2], 'sequence') or '0'}
for at = 1, #ARGV / 2 do
  local name, after = ARGV[at], ARGV[#ARGV / 2 + at]
  local parked, letters, state, lease = KEYS[4 * at - 1], KEYS[4 * at], KEYS[4 * at + 1], KEYS[4 * at + 2]
  local group, count = known[name], redis.call('HLEN', parked)
  oldest = math.huge
  if count > 0 then
    for _, entry in ipairs(redis.call('HKEYS', parked)) do
      -- What is backfilled stands behind an entry that may be old, and that is delivered.
      if not string.find(entry, '+', 1, true) then seen(entry) end
    end
  end
  local lag, pending, first = '', 0, ''
  if not group and after ~= '' then after = redis.call('HGET', state, 'place') or after end
  if group then
    after = group['last-delivered-id']
    lag = group['lag'] or ''
    local held = redis.call('XPENDING', KEYS[1], name)
    pending = held[1]
    if held[2] then seen(held[2]) end
  end
  if after ~= '' then
    local following = redis.call('XRANGE', KEYS[1], '(' .. after, '+', 'COUNT', 1)[1]
    if following then
      seen(following[1])
      first = string.match(table.concat(following[2], ' '), '"sequence":"(%d+)"') or '?'
    end
  end
  local since = oldest < math.huge and string.format('%.0f', oldest) or ''
  local rest = {(group or first ~= '') and 1 or 0, lag, pending, first, since, count, redis.call('HLEN', letters),
    redis.call('HGET', state, 'lost') or '0', redis.call('GET', lease), ''}
  if redis.call('HEXISTS', state, 'backfill') == 1 then
    rest[10] = redis.call('HMGET', state, 'backfill', 'backfill_done', 'backfill_total')
  end
  for place = 1, 10 do answer[#answer + 1] = rest[place] end
end
return answer
