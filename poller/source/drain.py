"""Reading a feed that has one listing for each qualification: thousands, each with a state of its own.

Theory of operation
-------------------
The listings are read in the order of :mod:`poller.source.drain`, some of them asked for at the same time, all of
them committed one after the other. What each held is kept with it, and that is written after its records: a crash in
between costs a reading. A round lasts a slot (its interval); the next one goes on with those whose turn did not come.
Once all have been tried, a rotation is complete, and what no listing holds any more can be settled.

A listing that cannot be read costs itself: the others are read, its records stay, the round says so. Where it could
not be read in the first reading of the feed, its own first reading comes when it can be. One whose first
page answers 404 or 410 lists nothing; whether its records are gone is settled as for all others. The same answer to a
later page is an expired page token: the listing is read once more from its first page, and fails if that fails too.
Where none has a listing, the API is at fault and nothing is settled.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing
from datetime import datetime, timedelta
from functools import partial
from typing import Final, Protocol

import msgspec

from poller.changes.confirmation import Confirmation, after_reading
from poller.changes.plan import SeenKeys, SubstreamSnapshot
from poller.errors import RoundTimeExceeded, SourceError, SourceNonsense, SourceRefused, SourceUnavailable
from poller.failpoints import reach
from poller.lifecycle import ended
from poller.source.conditional import ConditionalRequest, ConditionalResponse, Validators
from poller.source.feed import Feed, RoundClock, RoundMode
from poller.source.paging import (
    REFUSING,
    DetectedCapabilities,
    Get,
    ListingReader,
    ListQuery,
    Params,
    read_pages,
    taken,
)
from poller.source.writer import RoundWriter, SeenKeysObserver

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
    query: ListQuery
    first: asyncio.Task[ConditionalResponse]


class SubstreamReader:
    """One round over the listings of a feed."""

    def __init__(
        self,
        feed: Feed,
        draining: SubstreamDrain,
        writer: RoundWriter,
        ask: ConditionalRequest,
        listings: dict[str, SubstreamSnapshot],
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
        self._unkept: dict[str, SubstreamSnapshot] = {}
        self._failures: list[SourceError] = []
        self._unavailable = 0

    async def read(self, named: Named, *, mode: RoundMode, slot: timedelta | None) -> None:
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
        """Whether the rotation is: every listing was tried in it, and some came to their end once.

        Raises:
            SourceError: none of the qualifications has a listing. That is no API whose records are gone.
        """
        read = [listing for name in self._rotation.names if (listing := self.listings.get(name, _NEVER)).read]
        if read and all(listing.gone for listing in read):
            raise SourceError(
                f"none of the {len(read)} qualifications has a listing: the API answered 404 to all of them"
            )
        return bool(read) and self.over

    @property
    def unread(self) -> frozenset[str]:
        """The qualifications, in lower case, whose listings were never read to their end."""
        return frozenset(name.lower() for name in self._rotation.names if not self.listings.get(name, _NEVER).read)

    @property
    def over(self) -> bool:
        """Whether every listing was tried in this rotation, whatever became of it."""
        return all(self.listings.get(name, _NEVER).tried >= self._since for name in self._rotation.names)

    def seen(self) -> SeenKeys:
        """What any listing holds, those that nobody names any more included."""
        seen = SeenKeys()
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

    async def _read(self, turn: _Turn, mode: RoundMode) -> None:
        kept = self.listings.get(turn.name, _NEVER)
        if kept.awaits_baseline and not kept.read:
            mode = RoundMode.BASELINE
        elif kept.confirming and mode is not RoundMode.RESYNC:
            mode = RoundMode.RECONCILE
        elif mode is RoundMode.BASELINE and kept.read:
            mode = RoundMode.FULL  # what is new here since is no first reading any more
        pages, keys = self._draining.pages, set[str]()
        failed = partial(self._failed, kept, turn, keys, mode)
        try:
            after = await self._ended(turn, kept, mode, keys)
        except SourceRefused as refused:
            if refused.status == _UNAUTHORIZED:
                raise
            gone = refused.status in _GONE and self._draining.pages == pages  # else it refused a page token
            after = kept.after(turn.begun, gone=True) if gone else failed(refused)
        except RoundTimeExceeded as failure:
            after = failed(failure)
            if kept.confirmation is not None and mode is RoundMode.RECONCILE:
                after = msgspec.structs.replace(after, confirmation=kept.confirmation.after(None))
        except (SourceNonsense, SourceUnavailable) as failure:
            after = failed(failure)
        self.listings[turn.name] = self._unkept[turn.name] = after
        if len(self._unkept) >= _KEPT_TOGETHER:
            await self._keep()

    async def _ended(self, turn: _Turn, kept: SubstreamSnapshot, mode: RoundMode, keys: set[str]) -> SubstreamSnapshot:
        before, unidentified = self._writer.tally.changes, self._writer.unidentified
        first = _PrefetchedPage(turn.first, self._ask)
        path, pages = self._feed.resource.listing_path(turn.name), self._draining.pages
        try:
            drain = await self._draining.drain(path, mode=mode, seen=keys, ahead=Prefetch(turn.query, first.get))
        except SourceRefused as refused:
            if self._draining.pages == pages or refused.status not in self._feed.expired_statuses:
                raise
            # A page token expired: the listing is read once more from its first page.
            again = Prefetch(self._draining.query, first.get)
            drain = await self._draining.drain(path, mode=mode, seen=keys, ahead=again)
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

    def _confirmation(self, kept: SubstreamSnapshot, pages: int, changes: int, mode: RoundMode) -> Confirmation | None:
        """What is to be confirmed of a listing after this reading. Without deltas, what a further one brings is late.

        An ordinary reading says of a listing that was given up whether it has come to rest.
        """
        if mode is RoundMode.FULL and kept.read:
            return kept.confirmation if changes else None
        return after_reading(kept.confirmation, pages=pages, confirming=mode is RoundMode.RECONCILE, late=changes)

    def _failed(
        self, kept: SubstreamSnapshot, turn: _Turn, keys: set[str], mode: RoundMode, failure: SourceError
    ) -> SubstreamSnapshot:
        self._failures.append(failure)
        self._unavailable = self._unavailable + 1 if isinstance(failure, SourceUnavailable) else 0
        return kept.failed(turn.begun, keys=keys, in_baseline=mode is RoundMode.BASELINE)

    async def _keep(self) -> None:
        unkept, self._unkept = self._unkept, {}
        if unkept:
            await self._writer.listings(unkept)


_NEVER: Final = SubstreamSnapshot()


class _PrefetchedPage:
    """The way to ask for a listing whose first page is on its way already."""

    def __init__(self, first: asyncio.Task[ConditionalResponse], ask: ConditionalRequest) -> None:
        self.validators: dict[str, str] = {}
        self._first: asyncio.Task[ConditionalResponse] | None = first
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


# Draining listings: from the first request to the last page, everything given to the writer.
#
# A listing that is refused as it is asked for is asked for with fewer parameters (:mod:`poller.source.paging`);
# what
# that teaches holds for the rest of the round, and for later ones. Refuses to know: what a delta token is worth, what
# kind of reading this is, what follows when a listing has ended.


class Prefetch(msgspec.Struct, frozen=True):
    """A first request: what it asks for, and the way to its answer."""

    query: ListQuery
    get: Get


class BetweenPages(Protocol):
    """What is read between the pages of a listing; see :class:`poller.source.deltas.DeltaReader`."""

    changed: set[str]

    async def between(self) -> Collection[str]:
        """There is another page, and it is on its way; the keys of what was read meanwhile."""
        ...


class SubstreamDrain:
    """The listings of one round, one after the other.

    Attributes:
        query: what is asked for: the feed's query without what the API has refused.
        learnt: what is known of the API.
        pages: how many were committed.
    """

    def __init__(
        self, feed: Feed, writer: RoundWriter, get: Get, learnt: DetectedCapabilities, clock: RoundClock
    ) -> None:
        """Take the feed as it is configured, what earlier rounds have learnt, and how long this one may take."""
        self.query = learnt.applied(feed.query)
        self.learnt = learnt
        self.pages = 0
        self._feed = feed
        self._writer = writer
        self._get = get
        self._clock = clock
        writer.asking_for(self.query.fields)

    async def drain(
        self,
        path: str,
        *,
        mode: RoundMode,
        since: str | None = None,
        seen: SeenKeysObserver | None = None,
        ahead: Prefetch | None = None,
        beside: BetweenPages | None = None,
    ) -> ListingReader:
        """Read one listing; no page was taken where it is unchanged.

        Args:
            path: of the listing.
            mode: the cause of what is published.
            since: the delta token to start from.
            seen: is told the keys of the records.
            ahead: the first request, where it is on its way already.
            beside: what else is read between its pages.

        Raises:
            SourceError: what went wrong; the pages before that are committed.
            StoreError: likewise.
        """
        before, first = self.pages, ahead or Prefetch(self.query, self._get)
        try:
            return await self._read(path, mode, since, seen, first, beside=beside)
        except SourceRefused as refused:
            if since or self.pages > before or refused.status not in REFUSING:
                raise
            if first.query == self.query and not await self._narrowed(path):
                raise
        return await self._read(path, mode, since, seen, Prefetch(self.query, self._get), beside=beside)

    async def _read(
        self,
        path: str,
        mode: RoundMode,
        since: str | None,
        seen: SeenKeysObserver | None,
        first: Prefetch,
        *,
        beside: BetweenPages | None,
    ) -> ListingReader:
        drain = ListingReader(first.query, since)
        newer: Collection[str] = ()
        async with aclosing(read_pages(first.get, path, drain)) as pages:
            async for page in pages:
                reach("page.fetched")
                changed = beside.changed if beside else None
                await self._writer.page(page, mode=mode, path=path, seen=seen, changed=changed, newer=newer)
                self.pages += 1
                if drain.ending is not None:
                    continue
                if self._clock.over:
                    raise self._clock.given_up(self.pages)
                await self._clock.tell(self.pages)
                if beside is not None:
                    newer = await beside.between()
        if drain.pages:
            self.learnt = self.learnt.seeing(drain)
        return drain

    async def _narrowed(self, path: str) -> bool:
        """Whether there is a query that this listing takes; it is used from now on."""
        query = await taken(self.query, partial(self._takes, path))
        if query is None:
            return False
        self.query, self.learnt = query, self.learnt.refusing(self._feed.query, query)
        self._writer.asking_for(query.fields)
        return True

    async def _takes(self, path: str, query: ListQuery) -> bool:
        try:
            await self._get(path, query.first(None))
        except SourceRefused as refused:
            if refused.status in REFUSING:
                return False
            raise
        return True


# Whose turn it is: in which order the listings of a feed are read, for there may be thousands.
#
# Theory of operation
# -------------------
# First come the listings that something suggests have changed: those whose qualification was named by a change since
# they were last tried, and those that were never read, the latest first. Then the others, by how long ago they were
# tried, a listing whose readings brought changes counting for older than it is (three times at most), so that none
# waits
# for ever. Between the two come those that are being confirmed, once in each round. In one rotation each has one
# turn,
# and another for each change that names it meanwhile; a rotation may take several rounds.
#
# Pure: who is named, and when, is told; times are milliseconds of the store's clock.

NEAR: Final = 60_000
"""Milliseconds by which the clocks of two processes may differ that know the store's."""

_CONFIRMING: Final = -1.0  # behind whatever was named at any time


class Rotation:
    """The turns of one rotation that are left."""

    def __init__(
        self, listings: Mapping[str, SubstreamSnapshot], *, since: int, resumed: bool = False, now: int | None = None
    ) -> None:
        """Begin or go on.

        What was tried or named in what is still to come was noted by a clock that was wrong, or was set back since:
        when that was is not known.

        Args:
            listings: what is kept of them.
            since: when the rotation began.
            resumed: whether it goes on: then those that were tried since have had their turn.
            now: what the clock shows; None: all moments are believed.
        """
        self._listings = listings
        self._since = since
        self._latest = float("inf") if now is None else now + NEAR
        self._tried = {
            name: listing.tried if listing.tried <= self._latest else 0 for name, listing in listings.items()
        }
        self._done = {
            name
            for name, listing in listings.items()
            if resumed and self._tried[name] >= since and not listing.confirming
        }
        self._named: dict[str, int] = {}
        self._waiting: deque[str] = deque()

    def named(self, changed: Mapping[str, int]) -> None:
        """These qualifications are there, and were last named by a change then (0: it is not known when)."""
        if not changed and self._named:
            return
        for name, when in changed.items():
            self._named[name] = max(when if when <= self._latest else 0, self._named.get(name, 0))
        self._waiting = deque(sorted(filter(self._due, self._named), key=self._urgency, reverse=True))

    def turn(self, now: int) -> str | None:
        """The listing to be read now; None where all had their turn."""
        self._latest = max(self._latest, now + NEAR)
        if not self._waiting:
            return None
        name = self._waiting.popleft()
        self._done.add(name)
        self._tried[name] = now
        return name

    @property
    def left(self) -> bool:
        """Whether some have not had their turn."""
        return bool(self._waiting)

    @property
    def names(self) -> tuple[str, ...]:
        """All qualifications that are there."""
        return tuple(self._named)

    def _due(self, name: str) -> bool:
        return name not in self._done or self._fresh(name)

    def _fresh(self, name: str) -> bool:
        return self._named[name] > self._tried.get(name, 0)

    def _urgency(self, name: str) -> tuple[bool, float]:
        tried = self._tried.get(name, 0)
        if not tried or self._fresh(name):
            return True, self._named[name]
        if self._listings[name].confirming:
            return True, _CONFIRMING
        return False, (self._since - tried) * (1 + self._listings[name].heat)
