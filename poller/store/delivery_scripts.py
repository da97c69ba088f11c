"""The Lua scripts of deliveries: the only way in which a pair's keys are written while it is delivered.

Their law is that of :mod:`poller.store.scripts`: first the checks, then writes that do not fail; bytes are moved and
compared, no more. Each of them checks the lease.
"""

from __future__ import annotations

from typing import Final

from redis.asyncio import Redis
from redis.commands.core import AsyncScript

from poller.store.scripts import RENEW, TAKE, in_any_case

# KEYS: lease, events. ARGV: nonce, group, consumer, the id to read after ('>': what nobody has read), how many at most.
# Answers as XREADGROUP, or 0 where the lease is not ours.
READ: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.pcall('XREADGROUP', 'GROUP', ARGV[2], ARGV[3], 'COUNT', ARGV[5], 'STREAMS', KEYS[2], ARGV[4])
"""

# KEYS: lease, events, state, parked, letters, letter_times. ARGV 1-5: nonce, serial, group, place ('' leaves it), now
# in ms. ARGV 6, 7: id and place of the replay ('' for no id leaves it, '' for no place ends it). ARGV 8-11: how many
# arguments follow of each: entries that the group may forget, parked (id, value), no longer parked (id), letters (id,
# value). Answers 1, or 0 where the lease is not ours. What has this serial or a lower one was written before. Lua takes
# some thousand arguments at once.
SETTLE: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local nonce, serial = string.match(redis.call('HGET', KEYS[3], 'settled') or '', '^(%S+) (%d+)$')
if nonce == ARGV[1] and tonumber(serial) >= tonumber(ARGV[2]) then return 1 end
local first, last, at = {}, {}, 12
for i = 8, 11 do
  first[i] = at
  at = at + tonumber(ARGV[i])
  last[i] = at - 1
end
for i = first[9], last[9], 4000 do
  redis.call('HSET', KEYS[4], unpack(ARGV, i, math.min(i + 3999, last[9])))
end
for i = first[10], last[10], 4000 do
  redis.call('HDEL', KEYS[4], unpack(ARGV, i, math.min(i + 3999, last[10])))
end
for i = first[11], last[11], 2 do
  redis.call('HSET', KEYS[5], ARGV[i], ARGV[i + 1])
  redis.call('ZADD', KEYS[6], ARGV[5], ARGV[i])
end
for i = first[8], last[8], 4000 do
  redis.call('XACK', KEYS[2], ARGV[3], unpack(ARGV, i, math.min(i + 3999, last[8])))
end
if ARGV[4] ~= '' then redis.call('HSET', KEYS[3], 'place', ARGV[4]) end
if ARGV[6] ~= '' and redis.call('HGET', KEYS[3], 'replay') == ARGV[6] then
  if ARGV[7] ~= '' then redis.call('HSET', KEYS[3], 'replay_after', ARGV[7])
  else
    redis.call('HDEL', KEYS[3], 'replay', 'replay_after', 'replay_to')
    redis.call('HSET', KEYS[3], 'replayed', ARGV[6])
  end
end
redis.call('HSET', KEYS[3], 'settled', ARGV[1] .. ' ' .. ARGV[2])
return 1
"""


class DeliveryScripts:
    """The scripts, registered once for a client and shared by its pairs."""

    def __init__(self, client: Redis, *, shebang: str = "") -> None:
        """Register them; ``shebang`` is their first line where the server knows it."""
        first = in_any_case(shebang)  # what is delivered may be trimmed
        self.take: AsyncScript = client.register_script(first + TAKE)
        self.renew: AsyncScript = client.register_script(first + RENEW)
        self.read: AsyncScript = client.register_script(first + READ)
        self.settle: AsyncScript = client.register_script(first + SETTLE)
