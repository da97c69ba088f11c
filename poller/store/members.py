"""The processes that share the work: who is there, and when that was last another.

A process says that it is there by a beat, every third of its lease's lifetime, and counts as gone when none came for
the whole of it, by the server's clock alone. Whoever looks clears away those that are gone, so each looks at the same
list as all others.

Law: one script does all of it. The version rises in the same instant in which the list changes, or when a process lets
go of leases; so whoever knows the version knows the list, and one look at a number is all that a quiet second costs.

Refuses to know: which leases there are, and whose turn they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Final, cast

import msgspec
from redis.asyncio import Redis
from redis.commands.core import AsyncScript

from poller.store.connection import translated
from poller.store.keys import MemberKeys
from poller.store.scripts import answered, in_any_case

# KEYS: version, roles, beats. ARGV: what is done ('look', 'beat' or 'leave'), the name, how long a beat lasts in ms,
# the roles, the version that is known ('' none), '1' where others have to look at their leases.
# Answers the version; where it is not the one that is known, names and roles in turn behind it.
# Lua writes large numbers as 1.7e+12, which no server reads.
MEET: Final = """
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local changed = ARGV[6] == '1'
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', string.format('%.0f', now))) do
  redis.call('ZREM', KEYS[3], gone)
  redis.call('HDEL', KEYS[2], gone)
  changed = true
end
if ARGV[1] == 'beat' then
  if redis.call('HGET', KEYS[2], ARGV[2]) ~= ARGV[4] then
    redis.call('HSET', KEYS[2], ARGV[2], ARGV[4])
    changed = true
  end
  redis.call('ZADD', KEYS[3], string.format('%.0f', now + tonumber(ARGV[3])), ARGV[2])
elseif ARGV[1] == 'leave' then
  redis.call('ZREM', KEYS[3], ARGV[2])
  if redis.call('HDEL', KEYS[2], ARGV[2]) == 1 then changed = true end
end
if changed then redis.call('INCR', KEYS[1]) end
local version = redis.call('GET', KEYS[1]) or '0'
if version == ARGV[5] then return {version} end
local answer = redis.call('HGETALL', KEYS[2])
table.insert(answer, 1, version)
return answer
"""


# KEYS: roles, beats. Answers the names of those that are there; names and roles in turn, of those that are not, too.
THERE: Final = """
local time = redis.call('TIME')
local now = string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
return {redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. now, '+inf'), redis.call('HGETALL', KEYS[1])}
"""


class Seen(msgspec.Struct, frozen=True):
    """The list of one version.

    Attributes:
        version: compare it for being another one: a store may lose its last writes.
        roles: what each process does, by its name.
    """

    version: str = ""
    roles: Mapping[str, frozenset[str]] = {}

    def doing(self, role: str) -> tuple[str, ...]:
        """The names of those that do this, in their order."""
        return tuple(sorted(name for name, roles in self.roles.items() if role in roles))


class Members:
    """The list, as one process sees it. Each method may raise StoreError."""

    def __init__(self, client: Redis, keys: MemberKeys, *, name: str, ttl: timedelta, shebang: str = "") -> None:
        """Take where it is kept.

        Args:
            client: without retries of its own.
            keys: of the list.
            name: of this process.
            ttl: how long a beat lasts.
            shebang: the script's first line where the server knows it.
        """
        self.name = name
        self._client = client
        self._keys = [keys.version, keys.roles, keys.beats]
        self._ttl_ms = int(ttl.total_seconds() * 1000)
        self._meet: AsyncScript = client.register_script(in_any_case(shebang) + MEET)  # who is there counts then, too

    async def look(self, known: Seen, *, tell: bool = False) -> Seen:
        """The list as it is now; the very one that is known where nothing has changed. ``tell``: others look, too."""
        return await self._met("look", known, tell=tell)

    async def beat(self, roles: Iterable[str], known: Seen, *, tell: bool = False) -> Seen:
        """Be there, and do this, for another term."""
        return await self._met("beat", known, roles, tell=tell)

    async def leave(self, known: Seen, *, tell: bool = False) -> Seen:
        """Be there no more."""
        return await self._met("leave", known, tell=tell)

    async def _met(self, what: str, known: Seen, roles: Iterable[str] = (), *, tell: bool = False) -> Seen:
        arguments: list[str | int] = [
            what,
            self.name,
            self._ttl_ms,
            ",".join(sorted(roles)),
            known.version,
            "1" if tell else "",
        ]
        with answered(self._client):
            version, *rest = await self._meet(self._keys, arguments)
        if version.decode() == known.version:
            return known
        return Seen(version.decode(), _roles(dict(zip(rest[::2], rest[1::2], strict=True))))


async def members_now(client: Redis, keys: MemberKeys) -> dict[str, frozenset[str]]:
    """What each process does that is there, by its name. Changes nothing.

    Raises:
        StoreError: see :func:`~poller.store.connection.translated`.
    """
    with translated(client):
        there, kept = cast("list[list[bytes]]", await client.eval(THERE, 2, keys.roles, keys.beats))
    roles = _roles(dict(zip(kept[::2], kept[1::2], strict=True)))
    return {name.decode(): roles.get(name.decode(), frozenset()) for name in there}


def _roles(kept: Mapping[bytes, bytes]) -> dict[str, frozenset[str]]:
    return {name.decode(): frozenset(filter(None, text.decode().split(","))) for name, text in kept.items()}
