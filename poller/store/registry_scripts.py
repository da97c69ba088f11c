"""The scripts that change and read the registry of subscriptions: short Lua, each whole or not at all.

Law: what is written comes by ARGV, but for moments of the store's clock. Nothing here knows what a field means.
"""

from __future__ import annotations

from typing import Final

from poller.store.clock import TIME_MS

# KEYS: version, and the hashes. ARGV: the version that this was planned on; then for each field its hash (a number
# among KEYS), name and value ('' deletes it). Answers 1, or 0 where the version is another one: nothing was written.
CHANGE: Final = """
local version = redis.call('GET', KEYS[1]) or '0'
if version ~= ARGV[1] then return 0 end
for i = 2, #KEYS do
  local kind = redis.call('TYPE', KEYS[i])['ok']
  if kind ~= 'none' and kind ~= 'hash' then
    return redis.error_reply('WRONGTYPE ' .. KEYS[i] .. ' is a ' .. kind .. ', not a hash')
  end
end
redis.call('INCR', KEYS[1])
for i = 2, #ARGV, 3 do
  local key = KEYS[tonumber(ARGV[i])]
  if ARGV[i + 2] == '' then redis.call('HDEL', key, ARGV[i + 1])
  else redis.call('HSET', key, ARGV[i + 1], ARGV[i + 2]) end
end
return 1
"""

# KEYS: version, and the hashes. Answers the version ('' for none), and of each hash its fields and values in turn. A
# script and no MULTI, for a server that is out of memory takes none of that, not even to read.
ALL: Final = """
local answer = {redis.call('GET', KEYS[1]) or ''}
for i = 2, #KEYS do answer[i] = redis.call('HGETALL', KEYS[i]) end
local time = redis.call('TIME')
answer[#KEYS + 1] = time[1] * 1000 + math.floor(time[2] / 1000)
return answer
"""

# KEYS: a hash. Answers its fields and values in turn, and the time in ms.
ALL_OF: Final = (
    TIME_MS
    + """
return {redis.call('HGETALL', KEYS[1]), now}
"""
)

# KEYS: registry, a hash. ARGV: subscription, value, field. Answers 1, or 0 where there is no such subscription.
NOTE: Final = """
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('HSET', KEYS[2], ARGV[3], ARGV[2])
return 1
"""

# As NOTE. ARGV: subscription, until when its sink wants nothing in ms, how long that may be in ms, the field for since
# when. The later moment stays, unless it is further away than a pause may be: then a wrong clock has written it.
NOTE_PAUSE: Final = (
    TIME_MS
    + """
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
local before, latest = tonumber(redis.call('HGET', KEYS[2], ARGV[1]) or '0'), now + tonumber(ARGV[3])
local wanted = math.min(tonumber(ARGV[2]), latest)
if before < wanted or before > latest then
  redis.call('HSET', KEYS[2], ARGV[1], string.format('%.0f', wanted), ARGV[4], string.format('%.0f', now))
end
return 1
"""
)
