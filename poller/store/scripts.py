"""The Lua scripts: the only way in which a feed's keys are written.

Law of all of them: first the checks, then writes that do not fail, for Redis does not roll a script back. They move
bytes and compare them, no more; events are encoded and snapshots are packed before (Lua would damage large integers
and empty arrays).

Fencing compares a random nonce and not a counter: a counter kept in the same Redis, replicated asynchronously, may
repeat after a failover.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

from redis.asyncio import Redis
from redis.commands.core import AsyncScript
from redis.exceptions import NoScriptError

from poller.errors import StoreUnavailable
from poller.redis.errors import translated

# Servers from 7.0 on know the shebang. With it, one that is out of memory refuses the script before its first write.
SHEBANG: Final = "#!lua\n"

LONGEST_LEASE_MS: Final = 600_000
"""No configuration allows a longer lease. One that lasts longer was taken before the server's clock was set back."""

# How long the other's lease still lasts, in ms. A process that is there renews it in time; of one that is gone, and of
# a server whose clock was set back since, it would last for as long as that.
_LEFT: Final = f"""
local function left(lease, ttl)
  local left = redis.call('PTTL', lease)
  if left > {LONGEST_LEASE_MS} then
    redis.call('PEXPIRE', lease, ttl)
    left = tonumber(ttl)
  end
  return left
end
"""

# How much a feed keeps, and whether that is less than its state says: then a part of it is lost, for what a commit has
# written only grows. Answers the counts as text; the name of what is lost, or nil. "1" stands for a state that an older
# version wrote, which has published something and so knows at least one record.
_COUNTS: Final = """
local function counted(snapshots, dictionaries, qualifications)
  return redis.call('HLEN', snapshots) .. ' ' .. redis.call('HLEN', dictionaries) .. ' '
    .. redis.call('ZCARD', qualifications)
end
local function lost(counts, kept, sequence)
  local have, names, at = {}, {'snapshots', 'dictionaries', 'qualifications'}, 0
  for count in string.gmatch(counts, '%d+') do have[#have + 1] = tonumber(count) end
  for count in string.gmatch(kept or (sequence ~= '0' and '1' or ''), '%d+') do
    at = at + 1
    if have[at] < tonumber(count) then return names[at] end
  end
end
"""

# KEYS: lease, state, snapshots, dictionaries, qualifications, listings, events, pause, held versions. ARGV: nonce, ttl
# of the lease in ms, a fresh generation, the generations of this feed that the caller knows (the newest first, '' for
# none), the sequence it knows.
# Answers, where the lease is ours now, the state as a flat list, a word on what was found, and its clock in ms; else
# the ms that the other's lease still has; and where the feed is paused, as text, what is kept of that. The word is ''
# where all is there, 'new' where nothing ever was, 'stream' where the stream lacks the last event that was published,
# and else what was missing ('all'; or 'order', where an operator wants it): then the feed was begun anew, with nothing
# left of what was known, and never with a half of it.
# The stream stays, for others may still need what is in it; and the sequence goes on from its last event, or, where it
# has none, from the highest number that anybody knows of: whoever compares numbers would take what comes for old.
BEGIN: Final = (
    _COUNTS
    + _LEFT
    + """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return left(KEYS[1], ARGV[2]) end
local pause = redis.call('GET', KEYS[8])
if pause then return pause end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
local time = redis.call('TIME')
local now = time[1] .. string.format('%03d', math.floor(tonumber(time[2]) / 1000))
local streams = redis.call('TYPE', KEYS[7])['ok'] == 'stream'
local have = redis.call('HMGET', KEYS[2], 'generation', 'sequence', 'kept', 'entry', 'torn', 'anew', 'formers')
local found = 'state'
if have[1] then
  found = have[6] and 'order' or lost(counted(KEYS[3], KEYS[4], KEYS[5]), have[3], have[2]) or ''
end
if found == '' then
  if have[4] then
    local last = '0-0'
    local told = streams and redis.call('XINFO', 'STREAM', KEYS[7]) or {}
    for i = 1, #told, 2 do
      if told[i] == 'last-generated-id' then last = told[i + 1] end
    end
    local function place(id)
      local ms, number = string.match(id, '^(%d+)-(%d+)$')
      return tonumber(ms), tonumber(number)
    end
    local ms, number = place(last)
    local then_ms, then_number = place(have[4])
    if have[5] or ms < then_ms or (ms == then_ms and number < then_number) then
      found = 'stream'
      redis.call('HDEL', KEYS[2], 'torn', 'entry')
      if last ~= '0-0' then redis.call('HSET', KEYS[2], 'entry', last) end
    end
  end
  return {redis.call('HGETALL', KEYS[2]), found, now}
end
local formers, sequence = ARGV[4], ARGV[5]
if have[1] then formers = have[1] .. ' ' .. (have[7] or '') end
if tonumber(have[2] or 0) and tonumber(have[2] or 0) > tonumber(sequence) then sequence = have[2] end
local newest = streams and redis.call('XREVRANGE', KEYS[7], '+', '-', 'COUNT', 1)[1]
if newest then sequence = string.match(table.concat(newest[2], ' '), '"sequence":"0*(%d+)"') or sequence end
local left = redis.call('EXISTS', KEYS[3], KEYS[4], KEYS[5], KEYS[6])
if not have[1] and left == 0 and not newest then found = 'all' end
redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[9])
redis.call('HSET', KEYS[2], 'generation', ARGV[3], 'sequence', sequence, 'kept', '0 0 0',
  'begun_at', now, 'begun_after', newest and newest[1] or '0-0')
if formers == '' and sequence == '0' and left == 0 then return {redis.call('HGETALL', KEYS[2]), 'new', now} end
redis.call('HSET', KEYS[2], 'formers', string.sub(formers, 1, 200), 'anew_at', now)
return {redis.call('HGETALL', KEYS[2]), found, now}
"""
)

# KEYS: lease. ARGV: nonce, ttl in ms. Answers nil where it is ours now, else the ms that the other's still has.
TAKE: Final = (
    _LEFT
    + """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return math.max(left(KEYS[1], ARGV[2]), 0) end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return false
"""
)

# KEYS: lease. ARGV: nonce, lease ttl in ms (0 lets it go). Answers 1 where it was ours.
RENEW: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then redis.call('DEL', KEYS[1]) else redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 1
"""

# KEYS: state. ARGV: the field to set, the field that must be there. Answers 1 where it was.
ORDER: Final = """
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], '1')
return 1
"""

# KEYS: quarantine, rejected. ARGV: for each entry its id and the digest of its record. Answers how many there were.
# A digest is forgotten only along with its entry: one that is gone already may have been quarantined anew since.
DROP: Final = """
local gone = 0
for i = 1, #ARGV, 2 do
  if redis.call('XDEL', KEYS[1], ARGV[i]) == 1 then
    redis.call('ZREM', KEYS[2], ARGV[i + 1])
    gone = gone + 1
  end
end
return gone
"""

# KEYS: lease, state, snapshots, events, quarantine, rejected, qualifications, dictionaries, listings,
# held versions.
# ARGV 1-8: nonce, generation, sequence this was planned on, sequence after it, digest, how many dictionaries the writer
#           knows (it packs snapshots with them), now in ms, most entries in the quarantine.
# ARGV 9-17: how many arguments follow of each: snapshots (field, value), events, quarantine (raw, reason, digest),
#            qualifications (id), dictionaries (field, value), marks (field, value; '' deletes), listings (field,
#            value), held versions (field, value), held versions that go (field).
# Answers OK, FENCED (the lease is not ours), STALE (planned on another state, or a part of what is known was lost
# since), or ALREADY (this very commit was written before and its reply got lost); an error where a key holds something
# else.
# A stream that was lost since is no reason to refuse; it is noted for the next BEGIN.
# Events come first: should a server refuse one of the writes after all (a missing permission), what was written comes
# again with the same id, and nothing is taken for published that is not.
COMMIT: Final = (
    _COUNTS
    + """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 'FENCED' end
local streams = true
local kinds = {false, 'hash', 'hash', 'stream', 'stream', 'zset', 'zset', 'hash', 'hash', 'hash'}
for i = 2, 10 do
  local kind = redis.call('TYPE', KEYS[i])['ok']
  if kind ~= 'none' and kind ~= kinds[i] then
    return redis.error_reply('WRONGTYPE ' .. KEYS[i] .. ' is a ' .. kind .. ', not a ' .. kinds[i])
  end
  if i == 4 then streams = kind ~= 'none' end
end
local have = redis.call('HMGET', KEYS[2], 'generation', 'sequence', 'digest', 'kept', 'entry')
if have[1] ~= ARGV[2] then return 'STALE' end
if ARGV[5] ~= '' and have[3] == ARGV[5] and have[2] == ARGV[4] then return 'ALREADY' end
if have[2] ~= ARGV[3] then return 'STALE' end
if redis.call('HLEN', KEYS[8]) ~= tonumber(ARGV[6]) then return 'STALE' end
if lost(counted(KEYS[3], KEYS[8], KEYS[7]), have[4], have[2]) then return 'STALE' end
local first, last = {}, {}
local at = 18
for i = 9, 17 do
  first[i] = at
  at = at + tonumber(ARGV[i])
  last[i] = at - 1
end
local entry = have[5]
for i = first[10], last[10] do entry = redis.call('XADD', KEYS[4], '*', 'data', ARGV[i]) end
for i = first[11], last[11], 3 do
  if redis.call('ZADD', KEYS[6], 'NX', ARGV[7], ARGV[i + 2]) == 1 then
    redis.call('XADD', KEYS[5], 'MAXLEN', '~', ARGV[8], '*',
      'raw', ARGV[i], 'reason', ARGV[i + 1], 'digest', ARGV[i + 2])
  end
end
if last[11] > first[11] then redis.call('ZREMRANGEBYRANK', KEYS[6], 0, -10001) end
if last[9] > first[9] then redis.call('HSET', KEYS[3], unpack(ARGV, first[9], last[9])) end
for i = first[12], last[12] do redis.call('ZADD', KEYS[7], ARGV[7], ARGV[i]) end
if last[13] > first[13] then redis.call('HSET', KEYS[8], unpack(ARGV, first[13], last[13])) end
if last[15] > first[15] then redis.call('HSET', KEYS[9], unpack(ARGV, first[15], last[15])) end
if last[16] > first[16] then redis.call('HSET', KEYS[10], unpack(ARGV, first[16], last[16])) end
for i = first[17], last[17] do redis.call('HDEL', KEYS[10], ARGV[i]) end
for i = first[14], last[14], 2 do
  if ARGV[i + 1] == '' then redis.call('HDEL', KEYS[2], ARGV[i])
  else redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
end
redis.call('HSET', KEYS[2], 'sequence', ARGV[4], 'digest', ARGV[5], 'kept', counted(KEYS[3], KEYS[8], KEYS[7]))
if entry then redis.call('HSET', KEYS[2], 'entry', entry) end
if have[5] and not streams then redis.call('HSET', KEYS[2], 'torn', '1') end
return 'OK'
"""
)


def in_any_case(shebang: str) -> str:
    """The first line of a script that a server runs although it is out of memory.

    For what keeps a lease, and for what is on the way to freeing memory: without these nothing would ever go. A commit
    and the beginning of a round are none of them.

    Args:
        shebang: the first line of the others; empty where the server does not know it.
    """
    return shebang and f"{shebang.rstrip()} flags=allow-oom\n"


class Scripts:
    """The scripts, registered once for a client and shared by its feeds."""

    def __init__(self, client: Redis, *, shebang: str = "") -> None:
        """Register them; ``shebang`` is their first line where the server knows it."""
        self.begin: AsyncScript = client.register_script(shebang + BEGIN)
        self.take: AsyncScript = client.register_script(in_any_case(shebang) + TAKE)
        self.renew: AsyncScript = client.register_script(in_any_case(shebang) + RENEW)
        self.commit: AsyncScript = client.register_script(shebang + COMMIT)


@contextmanager
def answered(client: Redis) -> Iterator[None]:
    """Around a script: :func:`translated`, and a server that forgets scripts faster than they are loaded is away."""
    try:
        with translated(client):
            yield
    except NoScriptError:
        raise StoreUnavailable("the server forgot a script between loading and running it") from None


# Sending a script again until it is answered, where that is safe: it recognises what it has written before.
#
# Law: it is sent again for as long as the lease it checks may last and no longer, for after that another may have it.

_FIRST_PAUSE: Final = 0.05  # seconds between tries; doubles up to
_LONGEST_PAUSE: Final = 1.0


async def until_answered(
    client: Redis,
    send: Callable[[], Awaitable[Any]],
    *,
    lease: timedelta,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Any:
    """The answer.

    Args:
        client: of the store.
        send: sends the script once.
        lease: how long it is worth sending.
        sleep: waits for so many seconds.

    Raises:
        StoreUnavailable: there was none for so long; it may or may not be written.
        StoreRefused: the server will say the same again.
    """
    clock = asyncio.get_running_loop().time
    deadline, pause = clock() + lease.total_seconds(), _FIRST_PAUSE
    while True:
        try:
            with answered(client):
                return await send()
        except StoreUnavailable:
            if clock() + pause >= deadline:
                raise
        await sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
