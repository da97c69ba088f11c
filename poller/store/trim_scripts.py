"""The Lua scripts that take entries out of an event stream.

Their law is that of :mod:`poller.store.scripts`: first the checks, then writes that do not fail; bytes are moved and
compared, no more. Each checks the feed's lease, and looks itself at where everybody stands at this instant: a group, a
replay or a place that came between the look and the cut is not cut off. They run on a server that is out of memory,
too: what they free is what it lacks.

Entries go by whole nodes of the stream first, so many at a time that a script takes some milliseconds, and the rest of
what may go out of the node after these.
"""

from __future__ import annotations

from typing import Final

from redis.asyncio import Redis
from redis.commands.core import AsyncScript

from poller.store.scripts import in_any_case

FENCED: Final = b"FENCED"
REPLAY: Final = "replay:"

# KEYS: lease, events, the feed's state, overruns; then of each pair: state, letters, letter_times.
# ARGV 1, 2: nonce, limit. From ARGV[9] on, of each pair: its group, and the place behind which it begins where it has
# neither a group nor a place yet ('' where it needs nothing then).
# A span is what somebody needs of the stream: what comes after `after`, from `start` (as XRANGE takes it) to `to`; and
# `held`, the first entry that is there and that was read and not acknowledged.
_SPANS: Final = """
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
"""

# As above. ARGV 3, 4: the last entry that may go, and the place behind it.
# Answers how many are gone, FENCED, or CHANGED: somebody needs what was to go, and nothing went.
TRIM: Final = (
    _SPANS
    + """
local last = padded(ARGV[3])
for _, one in ipairs(spans) do
  if padded(one.after) < last or (one.held and padded(one.held) <= last) then return 'CHANGED' end
end
return trimmed('MINID', ARGV[4])
"""
)

# As above. ARGV 3-7: how many entries may stay, now in ms, now as text, and as JSON why: what was not delivered went,
# what was to be delivered once more. Answers as TRIM does.
# What a subscription loses is written into one dead letter, 0-N, which grows as long as it is not past what was in the
# stream when it lost something last. A row of `overruns` is, by the group (or replay:group):
# told (0, 1), since when (ms), N, first lost, how many, sequence of the first and of the last, the first that is left
# ('-' where one of these is not known), the stream's last entry then.
SHRINK: Final = (
    _SPANS
    + """
local function sequence(entry)
  for i = 1, #entry[2], 2 do
    if entry[2][i] == 'data' then return string.match(entry[2][i + 1], '"sequence":"0*(%d+)"') end
  end
end
local newest = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
local at_stake, names = {}, {}
for _, one in ipairs(spans) do
  names[one.name] = true
  if one.pair then one.held = nil end  -- whoever delivers finds that these are gone, and writes a letter for each
  if one.held then one.start = one.held end
  local first = redis.call('XRANGE', KEYS[2], one.start, one.to, 'COUNT', 1)[1]
  if first then
    one.first, one.sequence = first[1], sequence(first)
    if one.to ~= '+' then
      local last = redis.call('XREVRANGE', KEYS[2], one.to, one.start, 'COUNT', 1)[1]
      one.last, one.last_sequence = last[1], sequence(last)
    end
    at_stake[#at_stake + 1] = one
  end
end
local gone = trimmed('MAXLEN', ARGV[3])
if gone == 0 then return 0 end
local left = redis.call('XRANGE', KEYS[2], '-', '+', 'COUNT', 1)[1]
local function last_sequence(one)
  if one.last and (not left or padded(one.last) < padded(left[1])) then return one.last_sequence end
  if not left then return redis.call('HGET', KEYS[3], 'sequence') end
  local number = sequence(left)
  return number and string.format('%.0f', tonumber(number) - 1)
end
local function quoted(text) return text == '-' and 'null' or '"' .. text .. '"' end
local function number_or_null(text) return text == '-' and 'null' or text end
for _, one in ipairs(at_stake) do
  if not left or padded(one.first) < padded(left[1]) then
    local last, count = last_sequence(one) or '-', gone
    if one.sequence and last ~= '-' then
      count = math.max(math.min(gone, tonumber(last) - tonumber(one.sequence) + 1), 1)
    end
    local told, at, number, first, entries, from, stop = string.match(
      redis.call('HGET', KEYS[4], one.name) or '', '^(%d) (%d+) (%d+) (%S+) (%d+) (%S+) %S+ %S+ (%S+)$')
    if not told or padded(one.held or one.after) >= padded(stop)
      or (one.pair and redis.call('HEXISTS', KEYS[one.pair + 1], '0-' .. number) == 0) then
      told, at, first, entries, from, number = '0', ARGV[4], one.first, 0, one.sequence or '-', 0
      if one.pair then number = redis.call('HINCRBY', KEYS[one.pair], 'overruns', 1) end
    end
    entries = string.format('%.0f', entries + count)
    local first_left = left and left[1] or '-'
    redis.call('HSET', KEYS[4], one.name,
      table.concat({told, at, number, first, entries, from, last, first_left, newest[1]}, ' '))
    if one.pair then
      local reason = string.sub(one.name, 1, 7) == 'replay:' and ARGV[7] or ARGV[6]
      redis.call('HSET', KEYS[one.pair + 1], '0-' .. number, '{"event":null,"reason":' .. reason
        .. ',"at":"' .. ARGV[5] .. '","attempts":[],"overrun":{"first":"' .. first .. '","left":' .. quoted(first_left)
        .. ',"events":' .. entries .. ',"sequence":' .. number_or_null(from)
        .. ',"last_sequence":' .. number_or_null(last) .. '}}')
      redis.call('ZADD', KEYS[one.pair + 2], ARGV[4], '0-' .. number)
      redis.call('HINCRBY', KEYS[one.pair], 'lost', count)
    end
  end
end
local rows = redis.call('HGETALL', KEYS[4])
for i = 1, #rows, 2 do
  if not names[rows[i]] and string.sub(rows[i + 1], 1, 1) == '1' then redis.call('HDEL', KEYS[4], rows[i]) end
end
return gone
"""
)

# KEYS: overruns. ARGV: name, the row as it was seen, the row that takes its place.
REPLACE: Final = """
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1
"""


class TrimScripts:
    """The scripts, registered once for a client and shared by its feeds."""

    def __init__(self, client: Redis, *, shebang: str = "") -> None:
        """Register them; ``shebang`` is their first line where the server knows it."""
        first = in_any_case(shebang)
        self.trim: AsyncScript = client.register_script(first + TRIM)
        self.shrink: AsyncScript = client.register_script(first + SHRINK)
        self.replace: AsyncScript = client.register_script(first + REPLACE)
