-- Part of trim and shrink: which spans of the stream are still needed, and by whom.
-- KEYS: lease, events, the feed's state, overruns; then of each pair: state, letters, letter_times.
-- ARGV 1, 2: nonce, limit.
-- From ARGV[9] on, of each pair: its group, and the place behind which it begins where it has neither a group
--   nor a place yet ('' where it needs nothing then).
-- A span is what a reader needs of the stream: what comes after `after`, from `start` (as XRANGE takes it) to
--   `to`; and `held`, the first entry that is there and that was read and not acknowledged.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 'FENCED' end
local oldest = redis.call('XRANGE', KEYS[2], '-', '+', 'COUNT', 1)[1]
if not oldest then return 0 end
local function padded(id)
  local ms, number = string.match(id, '^(%d+)%-?(%d*)$')
  return string.rep('0', 20 - #ms) .. ms .. string.rep('0', 20 - #number) .. number
end
local spans, groups, pairs_of = {}, {}, {}
local function span(name, pair, after, to)
  spans[#spans + 1] = {name = name, pair = pair, after = after, start = '(' .. after, to = to}
  return spans[#spans]
end
for i = 9, #ARGV, 2 do pairs_of[ARGV[i]] = (i - 9) / 2 * 3 + 5 end
for _, one in ipairs(redis.call('XINFO', 'GROUPS', KEYS[2])) do
  local group = {}
  for i = 1, #one, 2 do group[one[i]] = one[i + 1] end
  groups[group['name']] = group
  if string.sub(group['name'], 1, 4) == 'sub:' and not pairs_of[group['name']] then return 'CHANGED' end
  local found = span(group['name'], pairs_of[group['name']], group['last-delivered-id'], '+')
  if group['pending'] > 0 then
    local held = redis.call('XPENDING', KEYS[2], group['name'], oldest[1], '+', 1)[1]
    found.held = held and held[1]
  end
end
for i = 9, #ARGV, 2 do
  local name, pair = ARGV[i], pairs_of[ARGV[i]]
  local kept = redis.call('HMGET', KEYS[pair], 'place', 'replay_after', 'replay_to')
  local after = kept[1] or ARGV[i + 1]
  if not groups[name] and after ~= '' then span(name, pair, after, '+') end
  if kept[2] and kept[3] and padded(kept[3]) >= padded(oldest[1]) then
    span('replay:' .. name, pair, kept[2], kept[3])
  end
end
local function trimmed(how, bound)
  local gone = redis.call('XTRIM', KEYS[2], how, '~', bound, 'LIMIT', ARGV[2])
  if gone * 2 < tonumber(ARGV[2]) then gone = gone + redis.call('XTRIM', KEYS[2], how, '=', bound) end
  return gone
end
