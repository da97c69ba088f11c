"""One subscription's place in one feed's stream: read it, settle what was delivered, park what waits.

Theory of operation
-------------------
A consumer group reads the stream, always as the one consumer :data:`CONSUMER`, for a lease sees to it that one process
at a time does. So whoever takes over finds in the group what his predecessor had read and not settled, and reads it
again from the start: nothing is lost, and what comes twice had not been recorded as delivered.

What waits for its next attempt is *parked*, in the same script that takes it out of the group: the group does not hold
entries for days, and a parked one is in exactly one place at any instant. Dead letters keep the event itself, for the
stream may be trimmed; parked deliveries keep the id, for they are among what trimming spares.

A *replay* is a span of the stream to be delivered once more. Its place is written along with settlements as well, and
only while it is the one that was asked for last.

``place`` goes along with each settlement. Should the group be gone (destroyed, or lost with a part of the store), it is
made again there, and what comes again had not been settled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import chain
from typing import Any, Final, Literal, cast

import msgspec
from redis.asyncio import Redis
from redis.commands.core import AsyncScript
from redis.exceptions import NoScriptError, ResponseError

from poller.errors import Fenced, StoreUnavailable
from poller.store.connection import translated
from poller.store.feed import HeldElsewhere
from poller.store.keys import PairKeys, group_of
from poller.store.replays import Entry, ReplayPlace, ReplaySpan, replay_of
from poller.store.scripts import RENEW

CONSUMER: Final = "deliverer"
_FIRST_PAUSE: Final = 0.05  # seconds between tries of a settlement; doubles up to
_LONGEST_PAUSE: Final = 1.0
_PLACE: Final = "place"

# KEYS: lease. ARGV: nonce, ttl in ms. Answers -1 where it is ours now, else the ms that the other's still has.
_TAKE: Final = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return redis.call('PTTL', KEYS[1]) end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return -1
"""

# KEYS: lease, events, state, parked, letters, letter_times. ARGV 1-4: nonce, group, place ('' leaves it), now in ms.
# ARGV 5, 6: id and place of the replay ('' for no id leaves it, '' for no place ends it).
# ARGV 7-10: how many arguments follow of each: entries that the group may forget, parked (id, value), no longer parked
# (id), letters (id, value). All of it may be written twice. Answers 1, or 0 where the lease is not ours.
_SETTLE: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
local at = 11
local function upto(i)
  local first = at
  at = at + tonumber(ARGV[i])
  return first, at - 1
end
local first, last = upto(7)
local acked = {first, last}
first, last = upto(8)
if last >= first then redis.call('HSET', KEYS[4], unpack(ARGV, first, last)) end
first, last = upto(9)
if last >= first then redis.call('HDEL', KEYS[4], unpack(ARGV, first, last)) end
first, last = upto(10)
for i = first, last, 2 do
  redis.call('HSET', KEYS[5], ARGV[i], ARGV[i + 1])
  redis.call('ZADD', KEYS[6], ARGV[4], ARGV[i])
end
if ARGV[3] ~= '' then redis.call('HSET', KEYS[3], 'place', ARGV[3]) end
if ARGV[5] ~= '' and redis.call('HGET', KEYS[3], 'replay') == ARGV[5] then
  if ARGV[6] ~= '' then redis.call('HSET', KEYS[3], 'replay_after', ARGV[6])
  else
    redis.call('HDEL', KEYS[3], 'replay', 'replay_after', 'replay_to')
    redis.call('HSET', KEYS[3], 'replayed', ARGV[5])
  end
end
if acked[2] >= acked[1] then redis.call('XACK', KEYS[2], ARGV[2], unpack(ARGV, acked[1], acked[2])) end
return 1
"""


class Settlement(msgspec.Struct, frozen=True):
    """What is to be written of some deliveries at once.

    Attributes:
        acked: entries that the group need not hold any more.
        parked: deliveries that wait, by entry id: encoded, opaque here.
        unparked: entries that wait no more.
        letters: dead letters by entry id, encoded.
        place: every entry up to this one is settled or parked; empty where that is as it was.
        replay: how far the replay has come; None where that is as it was.
    """

    acked: Sequence[str] = ()
    parked: Mapping[str, bytes] = {}
    unparked: Sequence[str] = ()
    letters: Mapping[str, bytes] = {}
    place: str = ""
    replay: ReplayPlace | None = None


class DeliveryScripts:
    """The scripts, registered once for a client and shared by its pairs."""

    def __init__(self, client: Redis, *, shebang: str = "") -> None:
        """Register them; ``shebang`` is their first line where the server knows it."""
        self.take: AsyncScript = client.register_script(shebang + _TAKE)
        self.renew: AsyncScript = client.register_script(shebang + RENEW)
        self.settle: AsyncScript = client.register_script(shebang + _SETTLE)


class PairStore:
    """The store of one subscription to one feed, as its dispatcher sees it."""

    def __init__(
        self,
        client: Redis,
        scripts: DeliveryScripts,
        keys: PairKeys,
        *,
        events: str,
        subscription: str,
        nonce: str,
        lease: timedelta,
    ) -> None:
        """Take what the store works with.

        Args:
            client: without retries of its own.
            scripts: of that client.
            keys: of the pair.
            events: the key of the feed's stream.
            subscription: its id.
            nonce: proves that the lease is this process'.
            lease: how long it lives without being renewed.
        """
        self.keys = keys
        self.held = False
        self._client = client
        self._scripts = scripts
        self._events = events
        self._group = group_of(subscription)
        self._nonce = nonce
        self._lease = lease

    async def take(self) -> HeldElsewhere | None:
        """Take or renew the lease; None: it is ours.

        Raises:
            StoreError: see :func:`~poller.store.connection.translated`.
        """
        async with self._answered():
            left = int(await self._scripts.take([self.keys.lease], [self._nonce, self._milliseconds()]))
        self.held = left < 0
        return None if self.held else HeldElsewhere(timedelta(milliseconds=left))

    async def renew(self) -> bool:
        """Keep the lease for another term. False: it is lost."""
        async with self._answered():
            self.held = bool(await self._scripts.renew([self.keys.lease], [self._nonce, self._milliseconds()]))
        return self.held

    async def release(self) -> None:
        """Let the lease go, if it is ours."""
        self.held = False
        async with self._answered():
            await self._scripts.renew([self.keys.lease], [self._nonce, 0])

    async def open(self, start: Literal["now", "earliest"]) -> None:
        """See to it that the group is there: where it was, or, for a new one, at the end or the beginning."""
        async with self._answered():
            place = cast("bytes | None", await self._client.hget(self.keys.state, _PLACE))
            at = place.decode() if place else ("$" if start == "now" else "0")
            try:
                await self._client.xgroup_create(self._events, self._group, id=at, mkstream=True)
            except ResponseError as error:
                if not str(error).startswith("BUSYGROUP"):
                    raise
                return
            if place is None:
                last = (await self._client.xinfo_stream(self._events))["last-generated-id"] if at == "$" else b"0-0"
                await self._client.hset(self.keys.state, _PLACE, last)

    async def parked(self) -> dict[str, bytes]:
        """The deliveries that wait for their next attempt, by entry id, in no order."""
        async with self._answered():
            found = cast("dict[bytes, bytes]", await self._client.hgetall(self.keys.parked))
        return {entry.decode(): value for entry, value in found.items()}

    async def parked_besides(self, known: Container[str]) -> dict[str, bytes]:
        """Those of :meth:`parked` that are not known yet."""
        async with self._answered():
            kept = cast("list[bytes]", await self._client.hkeys(self.keys.parked))
            wanted = [entry for entry in map(bytes.decode, kept) if entry not in known]
            if not wanted:
                return {}
            values = cast("list[bytes | None]", await self._client.hmget(self.keys.parked, wanted))
        return {entry: value for entry, value in zip(wanted, values, strict=True) if value is not None}

    async def replay(self) -> ReplaySpan | None:
        """What is to be delivered once more, if anything."""
        return await replay_of(self._client, self.keys)

    async def past(self, span: ReplaySpan, *, most: int) -> list[Entry]:
        """The first entries of a replay, from where it stands."""
        async with self._answered():
            found: Any = await self._client.xrange(self._events, f"({span.after}", span.to, count=most)
        return list(_entries(found))

    async def pending(self, after: str, *, most: int) -> list[Entry]:
        """Entries that the group holds and that come after this one; the event is empty where it is gone.

        Raises:
            LookupError: there is no such group.
        """
        return await self._read(after, most)

    async def read(self, *, most: int) -> list[Entry]:
        """Entries that nobody has read yet; they are held by the group from now on.

        Raises:
            LookupError: there is no such group.
        """
        return await self._read(">", most)

    async def fetch(self, entries: Sequence[str]) -> dict[str, bytes]:
        """The events of these entries, those that the stream still has."""
        async with self._answered():
            asking = self._client.pipeline(transaction=False)
            for entry in entries:
                asking.xrange(self._events, entry, entry)
            answers = await asking.execute()
        return dict(_entries(list(chain.from_iterable(answers))))

    async def settle(self, settlement: Settlement, *, now_ms: int) -> None:
        """Write it, all or nothing; it may be written twice.

        Raises:
            Fenced: the lease is another's; nothing was written.
            StoreError: it may or may not be written.
        """
        keys = self.keys
        sections: list[list[str | bytes]] = [
            list(settlement.acked),
            list(chain.from_iterable(settlement.parked.items())),
            list(settlement.unparked),
            list(chain.from_iterable(settlement.letters.items())),
        ]
        names = [keys.lease, self._events, keys.state, keys.parked, keys.letters, keys.letter_times]
        replay = settlement.replay or ReplayPlace("", "")
        arguments: list[str | bytes | int] = [self._nonce, self._group, settlement.place, now_ms]
        arguments += [replay.id, replay.after, *map(len, sections)]
        kept = await self._until_answered(
            lambda: self._scripts.settle(names, [*arguments, *chain.from_iterable(sections)])
        )
        if not kept:
            self.held = False
            raise Fenced(f"the lease of {keys.lease} is not ours any more; nothing was written")

    async def _until_answered(self, send: Callable[[], Awaitable[Any]]) -> Any:
        """What may be written twice is sent again while the lease lasts: else all of it would be delivered again."""
        clock = asyncio.get_running_loop().time
        deadline, pause = clock() + self._lease.total_seconds(), _FIRST_PAUSE
        while True:
            try:
                async with self._answered():
                    return await send()
            except StoreUnavailable:
                if clock() + pause >= deadline:
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _read(self, entry: str, most: int) -> list[Entry]:
        async with self._answered():
            try:
                answer: Any = await self._client.xreadgroup(self._group, CONSUMER, {self._events: entry}, count=most)
            except ResponseError as error:
                if str(error).startswith("NOGROUP"):
                    raise LookupError(f"{self._events} has no group {self._group}") from None
                raise
        return list(_entries(answer[0][1])) if answer else []

    @asynccontextmanager
    async def _answered(self) -> AsyncIterator[None]:
        try:
            with translated(self._client):
                yield
        except NoScriptError:
            raise StoreUnavailable("the server forgot a script between loading and running it") from None

    def _milliseconds(self) -> int:
        return int(self._lease.total_seconds() * 1000)


def _entries(answer: Sequence[tuple[bytes, Mapping[bytes, bytes] | None]]) -> list[Entry]:
    """What is gone from the stream has an empty event."""
    return [(entry.decode(), (fields or {}).get(b"data", b"")) for entry, fields in answer]
