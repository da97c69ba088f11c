"""Reads one listing from its first to its last page and commits each.

**Invariants**

- A listing that is refused is requested again with fewer parameters (:mod:`poller.source.paging`). The result holds for
  the rest of the round and for later rounds.
- Deltas go on beside a full reading of many pages: one after the first page, one at each interval, one after the last
  page. Each is committed whole before its token is. If the full reading fails before one was read, one is read then.
- The delta token of such a full reading is not used: changes made before it was given, to records that slipped over
  the edge of a page, would never be read. It is used if records came late and no delta gave a token: the API may have
  forgotten theirs without a word, and the reading is confirmed anyway.
- A page that is fetched after a delta was read may be older than it: the request was on its way, or page tokens show
  the listing as it was at the first request. Records that a delta brought are left out of later pages, because no later
  delta would bring them again.
- A delta of several pages is confirmed before its token is used (:meth:`ListingDrain.read_delta`).
- A record that the full reading brings and no delta does is late (:mod:`poller.changes.full_readings`).
- A delta that fails does not fail the full reading; no further one is read in the round. If none worked, the token of
  the full reading is kept. If the API refused the token, that is a resync.
- A second pass over a listing of several pages commits nothing of it: it only says what is listed. Deltas go on beside
  it, too.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Final

import msgspec

from poller.changes.full_readings import OlderVersions, PageDigests
from poller.changes.plan import SeenKeys
from poller.changes.records import listed_keys, twin_of
from poller.clock import Clock, rfc3339
from poller.errors import RoundTimeExceeded, SourceError, SourceNotAsked, SourceRefused
from poller.failpoints import reach
from poller.lifecycle import in_turns
from poller.source.client import ConditionalReader
from poller.source.feed import Feed, RoundMode, RoundTimer
from poller.source.paging import (
    REFUSING,
    DetectedCapabilities,
    Get,
    ListingReader,
    ListQuery,
    accepted_query,
    read_pages,
)
from poller.source.writer import ListedKeys, RoundWriter, SeenKeysObserver
from poller.store.feed_state import DELTA_TOKEN, DELTA_TOKEN_AT

_CONFIRMING: Final = 3  # readings
ROUNDED: Final = timedelta(seconds=1)
"""What ``Age`` may be in an answer that no cache had kept: it is a whole number."""
OLDEST_COPY: Final = timedelta(days=1)
"""For older copies of a listing only what deltas have brought since then is looked for: that is in the stream."""


class Prefetch(msgspec.Struct, frozen=True):
    """A first request: its query, and the call that returns its answer."""

    query: ListQuery
    get: Get


class ListingDrain:
    """Reads the listings of one round.

    Attributes:
        query: the feed's query without what the API has refused.
        learnt: what is known of the API.
    """

    def __init__(
        self, feed: Feed, writer: RoundWriter, get: Get, learnt: DetectedCapabilities, timer: RoundTimer
    ) -> None:
        """Start with what earlier rounds have found out about the API."""
        self.query = learnt.applied(feed.query)
        self.learnt = learnt
        self._feed = feed
        self._writer = writer
        self._get = get
        self._timer = timer
        writer.set_fields(self.query.fields)

    @property
    def pages(self) -> int:
        """How many pages were read and planned, and committed where no listing is being read."""
        return self._writer.pages

    def is_expired(self, status: int) -> bool:
        """Whether an answer may mean that a token is not valid any more."""
        return status in self._feed.expired_statuses or status in self.learnt.expired

    async def keys(self, path: str, *, beside: DeltaReader | None) -> SeenKeys | None:
        """The keys of a listing and of the deltas beside it; None: not all of them are known.

        If a page token expires, the listing is read once more from its first page.

        Raises:
            RoundTimeExceeded: the round has taken too long.
            SourceError: a request failed.
            StoreError: as :meth:`read`.
        """
        try:
            return await self._listed_keys(path, beside)
        except SourceRefused as refused:
            if not self.is_expired(refused.status):
                raise
        return await self._listed_keys(path, beside)

    async def _listed_keys(self, path: str, beside: DeltaReader | None) -> SeenKeys | None:
        reader, listed = ListingReader(self.query), SeenKeys()
        async with aclosing(read_pages(self._get, path, reader)) as pages:
            async for page in pages:
                found = await in_turns(listed_keys(page.records, self._feed.id_field))
                if found is None:
                    return None
                listed.update(found)
                if beside is not None:
                    await beside.read_if_due()
                if reader.ending is None and self._timer.is_over:
                    raise self._timer.exceeded()
                await self._timer.show()
        if beside is not None:
            listed.update(beside.brought)
        return listed if reader.ending is not None else None

    async def read(
        self,
        path: str,
        *,
        mode: RoundMode,
        since: str | None = None,
        seen: SeenKeysObserver | None = None,
        listed: ListedKeys | None = None,
        ahead: Prefetch | None = None,
        beside: DeltaReader | None = None,
        digests: PageDigests | None = None,
    ) -> ListingReader:
        """Read one listing and commit its pages. An unchanged listing has no pages.

        Args:
            path: of the listing.
            mode: the cause of the events.
            since: the delta token to start from.
            seen: is given the keys of the records of a delta.
            listed: is given those of a full reading, whose older versions are compared when it has ended.
            ahead: the first request, if it was sent already.
            beside: the deltas that are read between the pages.
            digests: of the pages of the reading before; those of this one are added.

        Raises:
            SourceError: a request failed; the pages before it are committed.
            StoreError: likewise.
        """
        before, first = self.pages, ahead or Prefetch(self.query, self._get)
        try:
            return await self._read_pages(path, mode, since, seen, first, listed=listed, beside=beside, digests=digests)
        except SourceRefused as refused:
            if since or self.pages > before or refused.status not in REFUSING:
                raise
            if first.query == self.query and not await self._narrow_query(path):
                raise
        narrower = Prefetch(self.query, self._get)
        return await self._read_pages(path, mode, since, seen, narrower, listed=listed, beside=beside, digests=digests)

    async def read_delta(self, path: str, since: str | None, *, seen: SeenKeysObserver | None = None) -> ListingReader:
        """Read a delta and commit its pages; one of several pages is read again until that brings nothing more.

        If the API pages by offset, a record that changes while a delta is read shifts others over the edge of a page.
        Its token is behind them, so no later delta would bring them. At most three readings follow, for a record that
        all four missed is unlikely; none if the API takes a delta token once only, or if the round has taken too long.
        Nor does one follow a delta that has shown more than is remembered; a full reading does.

        Raises:
            SourceError: as :meth:`read`.
            StoreError: likewise.
        """
        await self._writer.begin_delta(since)
        try:
            reader = await self._read_repeatedly(path, since, seen)
        except SourceError:
            await self._writer.break_off_delta()
            raise
        self._writer.end_delta(reader.delta_token or since)
        return reader

    async def _read_repeatedly(self, path: str, since: str | None, seen: SeenKeysObserver | None) -> ListingReader:
        reader = await self.read(path, mode=RoundMode.DELTA, since=since, seen=seen)
        for _ in range(_CONFIRMING if reader.filled > 1 else 0):
            changes = self._writer.tally.changes
            if not self._writer.repeat_delta():
                break
            try:
                again = await self.read(path, mode=RoundMode.DELTA, since=since, seen=seen)
            except (RoundTimeExceeded, SourceRefused):
                break
            reader = again if again.delta_token else reader
            if self._writer.tally.changes == changes or again.filled <= 1:
                break
        return reader

    async def _read_pages(
        self,
        path: str,
        mode: RoundMode,
        since: str | None,
        seen: SeenKeysObserver | None,
        first: Prefetch,
        *,
        listed: ListedKeys | None,
        beside: DeltaReader | None,
        digests: PageDigests | None,
    ) -> ListingReader:
        reader, keys = ListingReader(first.query, since), seen if listed is None else listed
        async with (
            self._writer.commits_in_order(),
            self._older_last(listed, mode=mode, path=path, beside=beside) as older,
            aclosing(read_pages(first.get, path, reader)) as pages,
        ):
            async for page in pages:
                reach("page.fetched")
                newer = await beside.newer_than_page() if beside else ()
                changed = beside.changed if beside else None
                content, is_known = reader.content, digests is not None and reader.content in digests
                is_only = reader.ending is not None and reader.pages == 1
                is_stored = await self._writer.page(
                    page,
                    mode=mode,
                    path=path,
                    seen=keys,
                    changed=changed,
                    newer=newer,
                    is_known=is_known,
                    older=None if is_only else older,
                )
                if digests is not None and page.results:
                    digests.add(content, is_stored=is_stored)
                if reader.ending is not None:
                    continue
                if self._timer.is_over:
                    raise self._timer.exceeded()
                await self._timer.show()
                if beside is not None:
                    await beside.read_if_due()
        if reader.pages:
            self.learnt = self.learnt.seeing(reader)
        return reader

    @asynccontextmanager
    async def _older_last(
        self, listed: ListedKeys | None, *, mode: RoundMode, path: str, beside: DeltaReader | None
    ) -> AsyncGenerator[OlderVersions | None]:
        """When this block ends, compare the versions that it has put off; also if it ends with an error of the list."""
        if listed is None:
            yield None
            return
        older = OlderVersions()
        try:
            yield older
        except SourceNotAsked:  # other lists have failed, and this one is asked again in a moment
            raise
        except SourceError:
            await self._compare_older(older, listed, mode=mode, path=path, beside=beside)
            raise
        await self._compare_older(older, listed, mode=mode, path=path, beside=beside)

    async def _compare_older(
        self, older: OlderVersions, listed: ListedKeys, *, mode: RoundMode, path: str, beside: DeltaReader | None
    ) -> None:
        newer = await beside.newer_than_page() if beside else ()
        changed = beside.changed if beside else None
        await self._writer.end_listing(older, listed, mode=mode, path=path, changed=changed, newer=newer)

    async def _narrow_query(self, path: str) -> bool:
        """Find and use a query that this listing accepts; False: there is none."""
        query = await accepted_query(self.query, partial(self._is_accepted, path))
        if query is None:
            return False
        self.query, self.learnt = query, self.learnt.refusing(self._feed.query, query)
        self._writer.set_fields(query.fields)
        return True

    async def _is_accepted(self, path: str, query: ListQuery) -> bool:
        try:
            await self._get(path, query.first(None))
        except SourceRefused as refused:
            if refused.status in REFUSING:
                return False
            raise
        return True


class SecondPass:
    """Reads a listing of several pages once more in the same round, to see what slipped over the edge of a page.

    Attributes:
        is_futile: whether no pass may ever say what is listed: a cache has kept a page of it since the first pass, or
            the round has taken too long.
    """

    def __init__(self, drain: ListingDrain, path: str, answers: ConditionalReader, deltas: DeltaReader | None) -> None:
        """Nothing is read yet.

        Args:
            drain: reads the listing.
            path: of the listing.
            answers: measures how long a cache on the way had kept an answer.
            deltas: those that are read between the pages.
        """
        self._drain = drain
        self._path = path
        self._answers = answers
        self._deltas = deltas
        self.is_futile = False

    async def keys(self) -> SeenKeys | None:
        """The keys of all listed records; None: this pass does not say what is not listed.

        That is so if a record's key cannot be read, or if it :attr:`is_futile`.

        Raises:
            SourceError: a request failed.
            StoreError: see :meth:`poller.source.writer.RoundStore.commit`.
        """
        before, self._answers.age = self._answers.age, timedelta()
        try:
            listed = await self._drain.keys(self._path, beside=self._deltas)
            self.is_futile = listed is not None and self._answers.age > ROUNDED
            return None if self.is_futile else listed
        except RoundTimeExceeded:
            self.is_futile = True
            return None
        finally:
            self._answers.age = max(before, self._answers.age)


class DeltaReader:
    """Reads deltas beside one full reading.

    Attributes:
        token: the delta token that the next one starts from.
        worked: whether a delta was read to its end.
        failed: whether a delta failed.
        refused: whether the API refused the token.
        moved: whether a delta gave a token.
        doubtful: whether a delta had records that could not be distinguished, or that may not be as they are known.
        changed: the keys of the records that the full reading publishes.
        newer: the keys of records that a page may show in an older version than a delta has.
    """

    def __init__(
        self,
        feed: Feed,
        drain: ListingDrain,
        writer: RoundWriter,
        token: str,
        *,
        recent: Callable[[timedelta], Awaitable[Iterable[str]]] | None = None,
        age: Callable[[], timedelta] = timedelta,
        doubt: Callable[[], Mapping[str, str | None]] = dict,
        clock: Clock,
    ) -> None:
        """Start from a delta token.

        Args:
            feed: the feed.
            drain: reads one listing.
            writer: commits the token.
            token: the delta token that the first delta starts from.
            recent: reads the subjects of records that deltas have brought within a time before now.
            age: how long a cache had kept the oldest page so far.
            doubt: the marks that go with the token of a doubtful delta.
            clock: the store's.
        """
        self.token = token
        self.worked = self.failed = self.refused = self.moved = self.doubtful = False
        self.changed: set[str] = set()
        self._feed = feed
        self._drain = drain
        self._writer = writer
        self._seen: SeenKeys | None = None
        self._brought: set[str] = set()
        self.newer: set[str] = set()
        self._recent = recent
        self._age = age
        self._allowed: timedelta | None = None
        self._doubt = doubt
        self._latest: list[str] = []
        self._clock = clock
        self._due = self._begun = clock.monotonic()

    def update(self, keys: Iterable[str]) -> None:
        """Add the keys of records that a delta has brought."""
        listed = list(keys)
        self._brought.update(listed)
        self._latest += listed
        if self._seen is not None:
            self._seen.update(listed)

    def join(self, seen: SeenKeys) -> None:
        """Add what the deltas bring to the keys of the listing, from now on: the listing is read, and all of it exists.

        While it is read they are apart, for a delta may have an id in another JSON type.
        """
        self._seen = seen
        seen.update(self._brought)

    @property
    def late(self) -> int | None:
        """The number of records that the full reading brought late; None: unknown."""
        return None if self.failed else len(self.changed - self._brought)

    @property
    def brought(self) -> Collection[str]:
        """The keys of the records of all deltas."""
        return self._brought

    @property
    def stand_still(self) -> bool:
        """Whether the token that the deltas start from may be one that the API has forgotten."""
        return not self.moved and bool(self.late)

    def __contains__(self, key: object) -> bool:
        """Whether a delta or the full reading has brought this key."""
        return key in self._brought or (self._seen is not None and key in self._seen)

    async def newer_than_page(self) -> Collection[str]:
        """The keys of records of which a newer version may be known than a page that has just been received has.

        The pages of a listing may show it as it was at the first request, before the deltas of this reading. That may
        have been an older copy: the listing may lag behind deltas, and a cache may have kept it.
        """
        age = min(self._age(), OLDEST_COPY)
        if self._recent is not None and (self._allowed is None or age > self._allowed):
            self._allowed = age
            since_begun = timedelta(seconds=self._clock.monotonic() - self._begun)
            recent = await self._recent(self._feed.lag + age + since_begun)
            self.newer.update(_in_both_types(recent))
        return self.newer

    async def read_if_due(self) -> None:
        """Read a delta if one is due."""
        if self._clock.monotonic() >= self._due:
            await self.read()

    async def read_until(self, moment: float) -> None:
        """Wait until a moment of the monotonic clock, and read the deltas that are due until then."""
        while (now := self._clock.monotonic()) < moment:
            await self._clock.sleep(moment - now if self.failed else min(moment, max(self._due, now)) - now)
            await self.read_if_due()

    async def read(self) -> None:
        """Read a delta and commit its token.

        Raises:
            RoundTimeExceeded: the round has taken too long.
            StoreError: see :meth:`poller.source.writer.RoundStore.commit`.
        """
        if self.failed:
            return
        slot, begun = self._feed.slot or timedelta.max, self._clock.monotonic()
        self._due = begun + slot.total_seconds()
        pages, path, doubts = self._drain.pages, self._feed.resource.path, self._writer.doubts
        try:
            reader = await self._drain.read_delta(path, self.token, seen=self)
        except RoundTimeExceeded:
            raise
        except SourceError as failure:
            if isinstance(failure, SourceRefused) and pages == self._drain.pages:
                self.refused = self._drain.is_expired(failure.status)
            self.failed = True
            self.doubtful = self.doubtful or self._writer.doubts > doubts  # committed with its records
            return
        finally:
            # Those that were new when it began: the listing shows what deltas have repeated for longer than it may lag.
            age = self._feed.lag + timedelta(seconds=self._clock.monotonic() - begun)
            new = [key for key in self._latest if not self._writer.is_repeated(key, age)]
            self.newer.update(_in_both_types(new))
            self._latest.clear()
        self.worked = True
        marks = self._doubt() if self._writer.doubts > doubts else {}
        self.doubtful = self.doubtful or bool(marks)
        if reader.delta_token:
            self.token, self.moved = reader.delta_token, True
            now = rfc3339(self._clock.now())
            await self._writer.marks({DELTA_TOKEN: self.token, DELTA_TOKEN_AT: now, **marks})


def _in_both_types(keys: Iterable[str]) -> Iterator[str]:
    """These keys, and those of the same ids in the other JSON type."""
    return (key for one in keys for key in (one, twin_of(one)) if key)
