"""Trimming an event stream: look, let :mod:`poller.store.trimming` say how far, and take away what may go.

The law: what somebody needs does not go for its age, whatever happens between the look and the cut. There readers go
forward, which costs nothing; or somebody needs what he did not need before, which the script sees
(:mod:`poller.store.trim_scripts`): then nothing goes, and it is looked at anew. A delivery that is parked in between
was held by its group at the look; one that is to be redelivered holds its event itself.

What goes for the stream's size is written down by the script that takes it, for whoever needed it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from itertools import chain
from typing import Final, cast

import msgspec
from redis.asyncio import Redis

from poller.changes.events import recorded_time
from poller.errors import Fenced
from poller.store.connection import translated
from poller.store.keys import FeedKeys
from poller.store.overruns import Overrun, overrun_of
from poller.store.registrations import milliseconds_of
from poller.store.scripts import answered
from poller.store.standing import Watched, done_of, groups_of, pairs_of, stream_of
from poller.store.stream import EARLIEST
from poller.store.trim_scripts import FENCED, TrimScripts
from poller.store.trimming import AtMost, Place, Stream, UpTo, following, next_step, pressing

_LOOKS: Final = 20  # of one call at most: each but the last has taken something away, or found somebody on the move
_MOST: Final = 10_000  # entries that one script takes away
_MOST_BYTES: Final = 16 * 1024 * 1024  # 2 ms
_LEAST: Final = 200  # entries; more than a node of the stream holds
_LOST: Final = '"the stream outgrew retention.max_bytes, and these went before they were delivered"'
_LOST_AGAIN: Final = '"the stream outgrew retention.max_bytes, and these went before they were delivered once more"'

Known = Callable[[], Awaitable[Mapping[str, Watched]]]
"""Asks for the subscriptions to a feed, by id."""


class Rule(msgspec.Struct, frozen=True):
    """How long events stay: so long, and while the stream is not larger than so many bytes."""

    age: timedelta
    max_bytes: int

    def oldest(self, now: datetime) -> Place:
        """Entries before this place are old enough to go."""
        return max(milliseconds_of(now - self.age), 0), 0


class Trimmer:
    """The stream of one feed, as whoever has the feed's lease trims it."""

    def __init__(self, client: Redis, scripts: TrimScripts, *, prefix: str, feed: str, nonce: str) -> None:
        """Take what is worked with.

        Args:
            client: without retries of its own.
            scripts: of that client.
            prefix: of the store's keys.
            feed: ``SOURCE/NAME``.
            nonce: proves that the feed's lease is ours.
        """
        self._client = client
        self._scripts = scripts
        self._prefix = prefix
        self._feed = feed
        self._nonce = nonce
        self._keys = FeedKeys.of(prefix, feed)

    async def trim(self, rule: Rule, known: Known, *, now: datetime) -> int:
        """Take away what may go; how many entries that were. Many scripts of some milliseconds each.

        Args:
            rule: how long events stay.
            known: the subscriptions to this feed; asked for only where something might go.
            now: the store's clock, UTC.

        Raises:
            Fenced: the feed's lease is another's.
            StoreError: what is gone is gone, by the same rule.
        """
        total, oldest = 0, rule.oldest(now)
        for _ in range(_LOOKS):
            stream = await stream_of(self._client, self._keys.events)
            if stream.first is None or not pressing(stream, oldest=oldest, max_bytes=rule.max_bytes):
                break
            groups = await groups_of(self._client, self._keys.events)
            pairs = pairs_of(groups, self._prefix, self._feed, await known())
            done = await done_of(self._client, self._keys.events, stream.first, groups, pairs)
            step = next_step(stream, done, oldest=oldest, max_bytes=rule.max_bytes)
            gone = 0 if step is None else await self._take(step, stream, pairs, now)
            if gone == 0:
                break
            total += gone or 0
        return total

    async def untold(self) -> list[Overrun]:
        """The overruns that nobody was told of.

        Raises:
            StoreError: see :func:`~poller.store.connection.translated`.
        """
        with translated(self._client):
            rows = cast("dict[bytes, bytes]", await self._client.hgetall(self._keys.overruns))
        found = (overrun_of(name, row) for name, row in rows.items())
        return [one for one in found if one is not None and not one.told]

    async def told(self, overrun: Overrun) -> None:
        """Somebody was; unless more has gone since, which is told then.

        Raises:
            StoreError: see :func:`~poller.store.connection.translated`.
        """
        with answered(self._client):
            await self._scripts.replace([self._keys.overruns], [overrun.name, overrun.row, overrun.row_told])

    async def _take(
        self, step: UpTo | AtMost, stream: Stream, pairs: Mapping[str, Watched], now: datetime
    ) -> int | None:
        """How many entries are gone; None: it is to be looked at anew."""
        most = max(_LEAST, min(_MOST, _MOST_BYTES * stream.length // max(stream.size, 1)))
        script, limits = self._scripts.trim, _limits(step, now)
        if isinstance(step, AtMost):
            script = self._scripts.shrink
        keys = self._keys
        names = [keys.lease, keys.events, keys.state, keys.overruns]
        names += chain.from_iterable(
            (one.keys.state, one.keys.letters, one.keys.letter_times) for one in pairs.values()
        )
        begins = chain.from_iterable((name, EARLIEST if one.earliest else "") for name, one in pairs.items())
        arguments = [self._nonce, most, *limits, *begins]
        total = 0
        while True:
            with answered(self._client):
                gone: bytes | int = await script(names, arguments)
            if gone == FENCED:
                raise Fenced(f"the lease of {keys.lease} is not ours any more; nothing was trimmed")
            if not isinstance(gone, int):  # CHANGED
                return total or None
            total += gone
            if gone * 2 < most:
                return total


def _limits(step: UpTo | AtMost, now: datetime) -> list[str | int]:
    """The third to the eighth argument of the scripts."""
    if isinstance(step, UpTo):
        return [_written(step.last), _written(following(step.last)), "", "", "", ""]
    return [step.entries, milliseconds_of(now), recorded_time(now), _LOST, _LOST_AGAIN, ""]


def _written(place: Place) -> str:
    return f"{place[0]}-{place[1]}"
