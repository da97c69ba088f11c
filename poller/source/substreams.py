"""Reads a feed that has one listing for each qualification.

Theory of operation
-------------------
There may be thousands of listings. Several are requested at the same time and all are committed one after the other.
What each listing held is stored after its records, with a later commit of the round: a crash in between costs 64
readings at most. A round lasts one slot (its interval); the next round goes on with the listings that are left. When
all have been tried, the rotation is complete, and records that no listing holds any more can be settled.

The order is: first the listings that may have changed, the latest first. These are the ones whose qualification was
named by a change since they were last tried, and the ones that were never read. Then the listings that are being
confirmed, once in each round. Then all others, by how long ago they were tried; a listing whose readings brought
changes counts as up to three times older, so none waits for ever. In one rotation each listing has one turn, and
another for each change that names it meanwhile.

**Invariants**

- A listing that cannot be read fails alone: the others are read, its records stay, and the round reports it. If the
  feed's first reading could not read it, its own first reading comes when it can be read.
- A listing whose first page answers 404 or 410 is empty. Whether its records are gone is settled as for all others.
- The same answer to a later page is an expired page token: the listing is read again from its first page, and fails
  if that fails too.
- If no qualification has a listing, the API is at fault and nothing is settled.
- What one listing lacks may have moved to another one that cannot be read. It is not removed before that one was read,
  or has failed for :data:`MOVED`. Meanwhile nothing else is marked missing. Each mark would make the listings wait that
  fail just then, so where others fail in each rotation, nothing would be removed.
- A record that a listing lacked for the first time stays until the listing was read once more, whatever the record
  says of its qualification. A copy that a cache had kept is the reading that it was made in, also in a later round.
- A listing is unchanged only if none of its records was published since it was read, because of another listing.
- A listing that was read is read on, although no feed names its qualification any more.
- Records of a listing that is read again are committed together with their keys, and without the listing's version, as
  the API calls it and as its digest. The round may end before more is stored: then they still belong to it, although it
  cannot be read any more, and it is read in full, although it may have returned to its old version. Until a listing was
  read once, no version is known of it, and none of its records is removed.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from typing import Final

import msgspec

from poller.changes.full_readings import Confirmation, PageDigests, after_reading
from poller.changes.plan import SeenKeys, SubstreamSnapshot
from poller.clock import Clock
from poller.errors import RoundTimeExceeded, SourceError, SourceNonsense, SourceRefused, SourceUnavailable
from poller.lifecycle import ended
from poller.source.client import LONGEST_UNCHANGED, ConditionalRequest, ConditionalResponse, Validators
from poller.source.drain import ListingDrain, Prefetch
from poller.source.feed import Feed, RoundMode, RoundTimer
from poller.source.paging import ListQuery, Params
from poller.source.writer import GONE, RoundWriter

Named = Callable[[int], Awaitable[Mapping[str, int]]]
"""The qualifications named since a time, and when each was last: both milliseconds of the store's clock."""

_UNAUTHORIZED: Final = 401
_UNAVAILABLE: Final = 3  # listings in a row: then the fault is not the listing's
_REFRESH_AFTER: Final = 1.0  # seconds between two looks for qualifications named meanwhile

MOVED: Final = timedelta(hours=1)
"""For how long a listing that fails keeps what others lack, besides the time of two rotations."""

_REST: Final = timedelta(minutes=10)
"""From one round to the next, or two slots; after longer the feed was not polled between, and no listing has failed."""

_MOVED_MS: Final = int(MOVED.total_seconds() * 1000)
_LONGEST_UNCHANGED_MS: Final = int(LONGEST_UNCHANGED.total_seconds() * 1000)


class _Turn(msgspec.Struct, frozen=True):
    name: str
    begun: int
    query: ListQuery
    first: asyncio.Task[ConditionalResponse]


class SubstreamReader:
    """Reads the listings of a feed for one round."""

    def __init__(
        self,
        feed: Feed,
        drain: ListingDrain,
        writer: RoundWriter,
        ask: ConditionalRequest,
        listings: dict[str, SubstreamSnapshot],
        *,
        clock: Clock,
        timer: RoundTimer,
        since: datetime,
        resumed: bool,
        conditional: bool,
        rules: bytes,
    ) -> None:
        """Start or continue a rotation.

        Args:
            feed: its path has a placeholder for the qualification.
            drain: reads one listing.
            writer: counts records and commits listings.
            ask: one exchange with the API.
            listings: as stored, by qualification; kept up to date here.
            clock: the store's.
            timer: how long the round may take.
            since: when the rotation started.
            resumed: whether an earlier round started it.
            conditional: whether a listing may be called unchanged, by the API or by the digest of its page.
            rules: a digest of what decides how records are compared.
        """
        self.listings = listings
        self._feed = feed
        self._drain = drain
        self._writer = writer
        self._ask = ask
        self._clock = clock
        self._timer = timer
        self._since = _milliseconds(since)
        self._begun = _milliseconds(clock.now())
        self._conditional = conditional
        self._rules = rules
        self._rotation = Rotation(listings, since=self._since, resumed=resumed, now=self._begun)
        # Tried after a rotation that begins only now: the store's clock was set back.
        self._ahead = {name for name, one in listings.items() if one.tried > self._since and not resumed}
        # The feeds that had named a qualification may have forgotten it: a reset, another name, a feed that is gone.
        self._named = dict.fromkeys((*feed.qualifications, *(listings if feed.discover else ())), 0)
        self._named_until = self._refresh_at = 0.0
        self._failures: list[SourceError] = []
        self._unavailable = 0
        self._pass_over_rest()

    def _pass_over_rest(self) -> None:
        """Count no time as failing in which the feed was not polled: it was paused, or no process ran."""
        if self._feed.slot is None or not self.listings:  # by cron, which may be seldom
            return
        latest = max(one.tried for one in self.listings.values())
        rest = self._begun - latest - max(_REST, 2 * self._feed.slot) // timedelta(milliseconds=1)
        for name, one in list(self.listings.items()):
            if one.failing_since and rest > 0:
                self._store_listing(name, msgspec.structs.replace(one, failing_since=one.failing_since + rest))

    async def read(self, named: Named, *, mode: RoundMode, slot: timedelta | None) -> None:
        """Read listings until the slot is over; without a slot, all of them.

        Raises:
            SourceError: some could not be read; the others are.
            StoreError: see :meth:`poller.source.writer.RoundStore.commit`.
        """
        clock = self._clock.monotonic
        await self._refresh_named(named)
        ends, begun = clock() + slot.total_seconds() if slot else None, False

        def start() -> _Turn | None:
            nonlocal begun
            if self._given_up or (begun and ends is not None and clock() >= ends):
                return None
            begun = True  # however short the slot is, each round reads a listing
            return self._next_turn()

        async with aclosing(_turns(start, at_once=self._feed.at_once)) as turns:
            async for turn in turns:
                await self._read_listing(turn, mode)
                await self._timer.show()
                if clock() >= self._refresh_at:
                    await self._refresh_named(named)
        if self._timer.is_over and self._rotation.left and not self._failures:
            raise self._timer.exceeded()
        if self._failures:
            more = f" (and {len(self._failures) - 1} more listings)" if len(self._failures) > 1 else ""
            raise SourceError(f"{self._failures[0]}{more}")

    @property
    def is_complete(self) -> bool:
        """Whether every listing was tried in this rotation, and some were read to their end.

        Raises:
            SourceError: none of the qualifications has a listing; that is a fault of the API.
        """
        read = [listing for name in self._rotation.names if (listing := self.listings.get(name, _NEVER)).read]
        if read and all(listing.gone for listing in read):
            raise SourceError(
                f"none of the {len(read)} qualifications has a listing: the API answered 404 to all of them"
            )
        return bool(read) and self.is_over

    @property
    def has_unread(self) -> bool:
        """Whether some listings were never read to their end."""
        return not all(self.listings.get(name, _NEVER).read for name in self._rotation.names)

    @property
    def unsure(self) -> frozenset[str]:
        """The qualifications, in lower case, whose listings could not be read at their last turn.

        Such a listing may hold more records than are stored of it: those of a reading that a crash ended.
        """
        return frozenset(name.lower() for name in self._rotation.names if not self.listings.get(name, _NEVER).is_read)

    @property
    def left(self) -> frozenset[str]:
        """The keys of records that such a listing lacked when it was read last, and held before."""
        listings = (self.listings.get(name, _NEVER) for name in self._rotation.names)
        return frozenset(chain.from_iterable(one.keys_left for one in listings if not one.is_read))

    def may_hold(self, missing_at: int | None) -> bool:
        """Whether records that were marked missing at a time (ms; None: none were) may have moved to a failing listing.

        A listing that was read since then does not have them; one that has failed for :data:`MOVED` and two rotations
        keeps nothing any more.
        """
        if missing_at is None:
            return False
        longest = _MOVED_MS + 2 * (self._begun - self._since)
        listings = (self.listings.get(name, _NEVER) for name in self._rotation.names)
        return any(
            0 <= self._begun - one.failing_since < longest and one.read < missing_at
            for one in listings
            if one.failing_since
        )

    @property
    def age(self) -> timedelta:
        """How long ago the oldest copy was made that a cache gave as a listing of this rotation; 0: none did."""
        listings = (self.listings.get(name, _NEVER) for name in self._rotation.names)
        copies = (self._begun - one.read + one.copied for one in listings if one.copied and one.is_read)
        return timedelta(milliseconds=max(copies, default=0))

    @property
    def is_over(self) -> bool:
        """Whether every listing was tried in this rotation, with or without success."""
        had_turn = self._rotation.had_turn
        return all(
            had_turn(name) and self.listings.get(name, _NEVER).tried >= self._since for name in self._rotation.names
        )

    @property
    def is_not_continued(self) -> bool:
        """Whether the next round begins a rotation.

        This one is over, or later rounds would take what was tried before it for a part of it.
        """
        return self.is_over or not self._ahead.isdisjoint(self._rotation.names)

    def seen(self) -> SeenKeys:
        """The keys of all stored listings, also of qualifications not named any more."""
        seen = SeenKeys()
        for listing in self.listings.values():
            seen.update(listing.keys)
        return seen

    @property
    def are_stored(self) -> bool:
        """Whether each listing has one page at most, and all records of it are known as they were on it."""
        return all(not one.held or (one.content and one.rules == self._rules) for one in self.listings.values())

    @property
    def unidentified(self) -> int:
        """The number of records in all listings whose id cannot be read."""
        return sum(listing.unidentified for listing in self.listings.values())

    @property
    def oldest(self) -> int | None:
        """The start of the oldest last reading (ms); None before all listings were read."""
        read = [self.listings.get(name, _NEVER).read for name in self._rotation.names]
        return min(read, default=0) or None

    @property
    def confirmation(self) -> Confirmation | None:
        """What is left to be confirmed of all listings together; None: nothing."""
        kept = (self.listings.get(name, _NEVER).confirmation for name in self._rotation.names)
        found = [one for one in kept if one is not None]
        if not found:
            return None
        readings = min(one.readings for one in found)
        return Confirmation(readings, sum(one.late for one in found), len(found))

    @property
    def _given_up(self) -> bool:
        return self._unavailable >= _UNAVAILABLE or self._timer.is_over

    async def _refresh_named(self, named: Named) -> None:
        self._refresh_at = self._clock.monotonic() + _REFRESH_AFTER
        found = await named(int(self._named_until)) if self._feed.discover else {}
        latest = _milliseconds(self._clock.now())
        self._named_until = max(self._named_until, *(when for when in found.values() if when <= latest + NEAR), 0)
        self._rotation.named({**self._named, **found} if self._named else found)
        self._named = {}

    def _next_turn(self) -> _Turn | None:
        begun = _milliseconds(self._clock.now())
        name = self._rotation.turn(begun)
        if name is None:
            return None
        query = self._drain.query
        kept = self.listings.get(name, _NEVER)
        recent = 0 <= begun - kept.received <= _LONGEST_UNCHANGED_MS
        known = kept.validators if self._conditional and recent and kept.rules == self._rules else {}
        asking = self._ask(self._feed.resource.listing_path(name), query.first(None), unless=_validators(known))
        return _Turn(name, begun, query, asyncio.create_task(asking))

    async def _read_listing(self, turn: _Turn, mode: RoundMode) -> None:
        kept = self.listings.get(turn.name, _NEVER)
        mode = _mode_of(kept, mode)
        pages, keys = self._drain.pages, Counter[str]()
        failed = partial(self._failed, kept, turn, keys, mode)
        try:
            after = await self._reading_of(turn, kept, mode, keys)
        except SourceRefused as refused:
            if refused.status == _UNAUTHORIZED:
                self._store_listing(turn.name, kept.failed(kept.tried, keys=keys))
                raise
            gone = refused.status in GONE and self._drain.pages == pages  # else it refused a page token
            # A cache may have kept this answer, too.
            after = kept.after(turn.begun, gone=True, copied=refused.age * 1000) if gone else failed(refused)
        except RoundTimeExceeded as failure:
            after = failed(failure)
            if kept.confirmation is not None and mode is RoundMode.RECONCILE:
                after = msgspec.structs.replace(after, confirmation=kept.confirmation.after(None))
        except (SourceNonsense, SourceUnavailable) as failure:
            after = failed(failure)
        except SourceError:  # there is no token to send: the listing had no turn
            self._store_listing(turn.name, kept.failed(kept.tried, keys=keys))
            raise
        self._store_listing(turn.name, after)
        await self._writer.commit_many_listings()

    async def _reading_of(
        self, turn: _Turn, kept: SubstreamSnapshot, mode: RoundMode, keys: Counter[str]
    ) -> SubstreamSnapshot:
        before, unidentified = self._writer.tally.changes, self._writer.unidentified
        unsettled = self._writer.unsettled
        first = _PrefetchedPage(turn.first, self._ask, partial(self._writer.is_outdated, kept))
        digests = PageDigests(await self._known_page(kept))
        path, pages = self._feed.resource.listing_path(turn.name), self._drain.pages
        with self._writer.with_records(_UnfinishedListing(turn.name, kept, keys)):
            try:
                ahead = Prefetch(turn.query, first.get)
                reader = await self._drain.read(path, mode=mode, listed=keys, ahead=ahead, digests=digests)
            except SourceRefused as refused:
                if self._drain.pages == pages or refused.status not in self._feed.expired_statuses:
                    raise
                # A page token expired: the listing is read once more from its first page.
                again = Prefetch(self._drain.query, first.get)
                reader = await self._drain.read(path, mode=mode, listed=keys, ahead=again, digests=digests)
        self._unavailable = 0
        copied, sequence = int(first.age.total_seconds() * 1000), self._writer.position[1]
        if not reader.pages:
            return kept.unchanged(turn.begun, copied=copied, sequence=sequence)
        changes = self._writer.tally.changes - before
        return kept.after(
            turn.begun,
            keys=keys,
            changed=changes > 0,
            validators=first.validators if self._writer.unsettled == unsettled else {},
            unidentified=self._writer.unidentified - unidentified,
            confirmation=self._confirmation(kept, reader.pages, changes, mode),
            copied=copied,
            sequence=sequence,
            rules=self._rules,
            content=digests.only,
        )

    async def _known_page(self, kept: SubstreamSnapshot) -> frozenset[bytes]:
        """The digest of the only page of a listing, if all records of it are stored as they were on it."""
        may_be_known = self._conditional and kept.content and kept.rules == self._rules
        return frozenset((kept.content,) if may_be_known and not await self._writer.is_outdated(kept) else ())

    def _confirmation(self, kept: SubstreamSnapshot, pages: int, changes: int, mode: RoundMode) -> Confirmation | None:
        """What is left to be confirmed of a listing after this reading.

        Without deltas, whatever a further reading brings is late. An ordinary reading of a listing that was given up
        shows whether it has come to rest.
        """
        if mode is RoundMode.FULL and kept.read:
            return kept.confirmation if changes else None
        return after_reading(kept.confirmation, pages=pages, confirming=mode is RoundMode.RECONCILE, late=changes)

    def _failed(
        self, kept: SubstreamSnapshot, turn: _Turn, keys: Collection[str], mode: RoundMode, failure: SourceError
    ) -> SubstreamSnapshot:
        self._failures.append(failure)
        self._unavailable = self._unavailable + 1 if isinstance(failure, SourceUnavailable) else 0
        return kept.failed(turn.begun, keys=keys, in_baseline=mode is RoundMode.BASELINE)

    def _store_listing(self, name: str, listing: SubstreamSnapshot) -> None:
        self.listings[name] = listing
        self._writer.keep_listing(name, listing)


_NEVER: Final = SubstreamSnapshot()


class _UnfinishedListing:
    """A listing that is read again, to be committed with its records; nothing while that is stored already."""

    def __init__(self, name: str, kept: SubstreamSnapshot, keys: Mapping[str, int]) -> None:
        self._name = name
        self._kept = kept
        self._keys = keys.keys()  # grows while the listing is read
        self._stored: set[str] | None = None

    def __call__(self) -> Mapping[str, SubstreamSnapshot]:
        if self._stored is None:
            self._stored = set(self._kept.keys)
        elif self._keys <= self._stored:
            return {}
        has_version = self._kept.validators or self._kept.content
        if not self._kept.read or (self._keys <= self._stored and not has_version):
            return {}
        self._stored |= self._keys
        return {self._name: self._kept.failed(self._kept.tried, keys=self._keys)}


def _mode_of(kept: SubstreamSnapshot, mode: RoundMode) -> RoundMode:
    """The kind of reading of one listing in a round of this kind."""
    if kept.awaits_baseline and not kept.read:
        return RoundMode.BASELINE
    if kept.confirming and mode is not RoundMode.RESYNC:
        return RoundMode.RECONCILE
    if mode is RoundMode.BASELINE and kept.read:
        return RoundMode.FULL  # records that are new here since are not of a first reading any more
    return mode


class _PrefetchedPage:
    """Requests of a listing whose first page was requested already."""

    def __init__(
        self,
        first: asyncio.Task[ConditionalResponse],
        ask: ConditionalRequest,
        is_outdated: Callable[[], Awaitable[bool]],
    ) -> None:
        self.validators: dict[str, str] = {}
        self.age = timedelta()  # of the oldest answer
        self._first: asyncio.Task[ConditionalResponse] | None = first
        self._ask = ask
        self._is_outdated = is_outdated

    async def get(self, path: str, params: Params) -> bytes | None:
        first, self._first = self._first, None
        answer = await (first or self._ask(path, params, unless=Validators()))
        if answer.body is None and await self._is_outdated():
            answer = await self._ask(path, params, unless=Validators())
        # The version of the first page says nothing about the others.
        self.validators = {} if first is None else answer.validators.headers
        self.age = max(self.age, timedelta(seconds=answer.age))
        return answer.body


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def _validators(headers: Mapping[str, str]) -> Validators:
    return Validators(headers.get("If-None-Match"), headers.get("If-Modified-Since"))


async def _turns(start: Callable[[], _Turn | None], *, at_once: int) -> AsyncGenerator[_Turn]:
    """Turns in the order in which they were started, ``at_once`` of them in flight. Close it."""
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


NEAR: Final = 60_000
"""Milliseconds by which the clocks of two processes may differ that know the store's."""

_CONFIRMING: Final = -1.0  # behind every qualification that was ever named


class Rotation:
    """The turns that are left in one rotation. Pure; times are milliseconds of the store's clock."""

    def __init__(
        self, listings: Mapping[str, SubstreamSnapshot], *, since: int, resumed: bool = False, now: int | None = None
    ) -> None:
        """Start or continue a rotation.

        A moment in the future was recorded by a clock that was wrong or has been set back since: it counts as
        unknown.

        Args:
            listings: as stored.
            since: when the rotation started.
            resumed: whether it is continued: then listings tried since have had their turn.
            now: the present moment; None: all moments are trusted.
        """
        self._listings = listings
        self._since = since
        self._latest = float("inf") if now is None else now + NEAR
        self._tried = {
            name: listing.tried if listing.tried <= self._latest else 0 for name, listing in listings.items()
        }
        self._had_turn = {name for name, tried in self._tried.items() if resumed and tried >= since}
        self._done = {name for name in self._had_turn if not listings[name].confirming}
        self._named: dict[str, int] = {}
        self._waiting: deque[str] = deque()

    def named(self, changed: Mapping[str, int]) -> None:
        """Add qualifications, each with when a change last named it (0: unknown)."""
        if not changed and self._named:
            return
        for name, when in changed.items():
            self._named[name] = max(when if when <= self._latest else 0, self._named.get(name, 0))
        self._waiting = deque(sorted(filter(self._due, self._named), key=self._urgency, reverse=True))

    def turn(self, now: int) -> str | None:
        """The listing to be read now; None: all had their turn."""
        self._latest = max(self._latest, now + NEAR)
        if not self._waiting:
            return None
        name = self._waiting.popleft()
        self._done.add(name)
        self._had_turn.add(name)
        self._tried[name] = now
        return name

    def had_turn(self, name: str) -> bool:
        """Whether the listing had a turn in this rotation, in this round or in an earlier one."""
        return name in self._had_turn

    @property
    def left(self) -> bool:
        """Whether some listings have not had their turn."""
        return bool(self._waiting)

    @property
    def names(self) -> tuple[str, ...]:
        """All qualifications."""
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
