"""Reading a feed that has one listing for each qualification: thousands, each with a state of its own.

Theory of operation
-------------------
The listings are read in the order of :mod:`poller.source.rotation`, some of them asked for at the same time, all of
them committed one after the other. What each held is kept with it, and that is written after its records: a crash in
between costs a reading. A round lasts a slot (its interval); the next one goes on with those whose turn did not come.
Once all have been tried, a rotation is complete, and what no listing holds any more can be settled.

A listing that cannot be read costs itself: the others are read, its records stay, the round says so. One that answers
404 lists nothing; whether its records are gone is settled as for all others. Where none has a listing, the API is at
fault and nothing is settled.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import Final

import msgspec

from poller.changes.confirmation import Confirmation, after_reading
from poller.changes.listings import Listing
from poller.changes.removal import Seen
from poller.errors import OutOfTime, SourceError, SourceNonsense, SourceRefused, SourceUnavailable
from poller.source.draining import Ahead, Draining
from poller.source.feed import Feed, Mode
from poller.source.paging import Params, Query
from poller.source.progress import RoundClock
from poller.source.rotation import NEAR, Rotation
from poller.source.unchanged import Answer, Ask
from poller.source.validators import Validators
from poller.source.writing import Writer
from poller.stopping import ended

Named = Callable[[int], Awaitable[Mapping[str, int]]]
"""The qualifications named since a time, and when each was last: both milliseconds of the store's clock."""

_GONE: Final = frozenset({404, 410})
_UNAUTHORIZED: Final = 401
_UNAVAILABLE: Final = 3  # listings one after the other: then it is not the listing
_LOOK_AGAIN: Final = 1.0  # seconds between two looks at who was named meanwhile
_KEPT_TOGETHER: Final = 64  # listings in one commit


class _Turn(msgspec.Struct, frozen=True):
    name: str
    begun: int
    query: Query
    first: asyncio.Task[Answer]


class Each:
    """One round over the listings of a feed."""

    def __init__(
        self,
        feed: Feed,
        draining: Draining,
        writer: Writer,
        ask: Ask,
        listings: dict[str, Listing],
        *,
        now: Callable[[], datetime],
        clock: RoundClock,
        since: datetime,
        resumed: bool,
        conditional: bool,
    ) -> None:
        """Take what the round works with.

        Args:
            feed: has a path with a place for the qualification.
            draining: reads a listing.
            writer: counts, and keeps listings.
            ask: one exchange with the API.
            listings: as they are kept, by qualification; kept up to date here.
            now: the store's clock, UTC.
            clock: how long the round may take.
            since: when the rotation began.
            resumed: whether an earlier round began it.
            conditional: whether what is kept may be trusted, so that a listing may answer that it is unchanged.
        """
        self.listings = listings
        self._feed = feed
        self._draining = draining
        self._writer = writer
        self._ask = ask
        self._now = now
        self._clock = clock
        self._since = _milliseconds(since)
        self._conditional = conditional
        self._rotation = Rotation(listings, since=self._since, resumed=resumed, now=_milliseconds(now()))
        self._named = dict.fromkeys(feed.qualifications, 0)
        self._looked = self._look_at = 0.0
        self._unkept: dict[str, Listing] = {}
        self._failures: list[SourceError] = []
        self._unavailable = 0

    async def read(self, named: Named, *, mode: Mode, slot: timedelta | None) -> None:
        """Read the listings whose turn it is, for so long as the slot lasts; None: all of them.

        Raises:
            SourceError: some could not be read; the others are.
            StoreError: see :meth:`poller.source.writing.RoundStore.commit`.
        """
        clock = asyncio.get_running_loop().time
        ends = clock() + slot.total_seconds() if slot else None
        await self._look(named)

        def start() -> _Turn | None:
            return None if self._given_up or (ends is not None and clock() >= ends) else self._started()

        async with aclosing(_in_turn(start, at_once=self._feed.at_once)) as turns:
            async for turn in turns:
                await self._read(turn, mode)
                await self._clock.tell(self._draining.pages)
                if clock() >= self._look_at:
                    await self._look(named)
        await self._keep()
        if self._clock.over and self._rotation.left and not self._failures:
            raise self._clock.given_up(self._draining.pages)
        if self._failures:
            more = f" (and {len(self._failures) - 1} more listings)" if len(self._failures) > 1 else ""
            raise SourceError(f"{self._failures[0]}{more}")

    @property
    def complete(self) -> bool:
        """Whether the rotation is: every listing was tried in it and came to its end once; False where there is none.

        Raises:
            SourceError: none of the qualifications has a listing. That is no API whose records are gone.
        """
        kept = [self.listings.get(name, _NEVER) for name in self._rotation.names]
        if kept and all(listing.gone for listing in kept):
            raise SourceError(
                f"none of the {len(kept)} qualifications has a listing: the API answered 404 to all of them"
            )
        return bool(kept) and self.over and all(listing.read for listing in kept)

    @property
    def over(self) -> bool:
        """Whether every listing was tried in this rotation, whatever became of it."""
        return all(self.listings.get(name, _NEVER).tried >= self._since for name in self._rotation.names)

    def seen(self) -> Seen:
        """What any listing holds, those that nobody names any more included."""
        seen = Seen()
        for listing in self.listings.values():
            seen.update(listing.keys)
        return seen

    @property
    def unidentified(self) -> int:
        """How many records of all listings have no id that can be read."""
        return sum(listing.unidentified for listing in self.listings.values())

    @property
    def oldest(self) -> int | None:
        """When the listing began to be read that was not read for the longest time (ms); None before all were read."""
        read = [self.listings.get(name, _NEVER).read for name in self._rotation.names]
        return min(read, default=0) or None

    @property
    def confirmation(self) -> Confirmation | None:
        """What is to be confirmed of the listings, in sum; None: nothing."""
        kept = (self.listings.get(name, _NEVER).confirmation for name in self._rotation.names)
        found = [one for one in kept if one is not None]
        if not found:
            return None
        readings = min(one.readings for one in found)
        return Confirmation(readings, sum(one.late for one in found), len(found))

    @property
    def _given_up(self) -> bool:
        return self._unavailable >= _UNAVAILABLE or self._clock.over

    async def _look(self, named: Named) -> None:
        self._look_at = asyncio.get_running_loop().time() + _LOOK_AGAIN
        found = await named(int(self._looked)) if self._feed.discover else {}
        latest = _milliseconds(self._now())
        self._looked = max(self._looked, *(when for when in found.values() if when <= latest + NEAR), 0)
        self._rotation.named({**self._named, **found} if self._named else found)
        self._named = {}

    def _started(self) -> _Turn | None:
        begun = _milliseconds(self._now())
        name = self._rotation.turn(begun)
        if name is None:
            return None
        query = self._draining.query
        known = self.listings.get(name, _NEVER).validators if self._conditional else {}
        asking = self._ask(self._feed.resource.listing_path(name), query.first(None), unless=_validators(known))
        return _Turn(name, begun, query, asyncio.create_task(asking))

    async def _read(self, turn: _Turn, mode: Mode) -> None:
        kept = self.listings.get(turn.name, _NEVER)
        if kept.confirming and mode is not Mode.RESYNC:
            mode = Mode.RECONCILE
        elif mode is Mode.BASELINE and kept.read:
            mode = Mode.FULL  # what is new here since is no first reading any more
        try:
            after = await self._ended(turn, kept, mode)
        except SourceRefused as refused:
            if refused.status == _UNAUTHORIZED:
                raise
            gone = refused.status in _GONE
            after = kept.after(turn.begun, gone=True) if gone else self._failed(kept, turn, refused)
        except OutOfTime as failure:
            after = self._failed(kept, turn, failure)
            if kept.confirmation is not None and mode is Mode.RECONCILE:
                after = msgspec.structs.replace(after, confirmation=kept.confirmation.after(None))
        except (SourceNonsense, SourceUnavailable) as failure:
            after = self._failed(kept, turn, failure)
        self.listings[turn.name] = self._unkept[turn.name] = after
        if len(self._unkept) >= _KEPT_TOGETHER:
            await self._keep()

    async def _ended(self, turn: _Turn, kept: Listing, mode: Mode) -> Listing:
        before, unidentified = self._writer.tally.changes, self._writer.unidentified
        first, keys = _First(turn.first, self._ask), set[str]()
        path = self._feed.resource.listing_path(turn.name)
        drain = await self._draining.drain(path, mode=mode, seen=keys, ahead=Ahead(turn.query, first.get))
        self._unavailable = 0
        if not drain.pages:
            return kept.unchanged(turn.begun)
        changes = self._writer.tally.changes - before
        return kept.after(
            turn.begun,
            keys=keys,
            changed=changes > 0,
            validators=first.validators,
            unidentified=self._writer.unidentified - unidentified,
            confirmation=self._confirmation(kept, drain.pages, changes, mode),
        )

    def _confirmation(self, kept: Listing, pages: int, changes: int, mode: Mode) -> Confirmation | None:
        """What is to be confirmed of a listing after this reading. Without deltas, what a further one brings is late.

        An ordinary reading says of a listing that was given up whether it has come to rest.
        """
        if mode is Mode.FULL and kept.read:
            return kept.confirmation if changes else None
        return after_reading(kept.confirmation, pages=pages, confirming=mode is Mode.RECONCILE, late=changes)

    def _failed(self, kept: Listing, turn: _Turn, failure: SourceError) -> Listing:
        self._failures.append(failure)
        self._unavailable = self._unavailable + 1 if isinstance(failure, SourceUnavailable) else 0
        return kept.failed(turn.begun)

    async def _keep(self) -> None:
        unkept, self._unkept = self._unkept, {}
        if unkept:
            await self._writer.listings(unkept)


_NEVER: Final = Listing()


class _First:
    """The way to ask for a listing whose first page is on its way already."""

    def __init__(self, first: asyncio.Task[Answer], ask: Ask) -> None:
        self.validators: dict[str, str] = {}
        self._first: asyncio.Task[Answer] | None = first
        self._ask = ask

    async def get(self, path: str, params: Params) -> bytes | None:
        first, self._first = self._first, None
        if first is not None:
            answer = await first
            self.validators = answer.validators.headers
            return answer.body
        self.validators = {}  # what the first page says of its version says nothing of the others
        return (await self._ask(path, params, unless=Validators())).body


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def _validators(headers: Mapping[str, str]) -> Validators:
    return Validators(headers.get("If-None-Match"), headers.get("If-Modified-Since"))


async def _in_turn(start: Callable[[], _Turn | None], *, at_once: int) -> AsyncGenerator[_Turn]:
    """Turns in the order in which they were started; so many are on their way at once. Close it."""
    waiting: deque[_Turn] = deque()
    try:
        while True:
            while len(waiting) < at_once and (turn := start()) is not None:
                waiting.append(turn)
            if not waiting:
                return
            yield waiting[0]
            waiting.popleft()
    finally:
        await ended(*(turn.first for turn in waiting))
