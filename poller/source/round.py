"""The poll round: one drain of a feed, from the lease to the delta token.

Theory of operation
-------------------
1. Take or renew the feed's lease. Another process has it: skip.
2. Read the state; it says which kind of reading is due.
3. For each page of each listing: compare with what is known, commit what changed, slice by slice. Snapshot and event
   go together, so a page that is read again after a crash yields nothing, and slices need no mark of their own.
4. After the last page, and only then, commit the delta token. A round that breaks off anywhere before leaves the
   token where it was; the next one reads the same again and the diff drops what was seen.

A round never raises for what the API or the store did; it ends in a result that says so. It may be cancelled at any
await: the commit alone is finished first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import datetime
from functools import partial

import msgspec

from poller.changes.events import recorded_time
from poller.changes.removal import Seen
from poller.errors import (
    Fenced,
    PollerError,
    RoundHeld,
    SourceError,
    SourceNonsense,
    SourceRefused,
    Stale,
    StoreError,
    StoreUnavailable,
)
from poller.failpoints import reach
from poller.source.feed import Feed, Mode, due
from poller.source.paging import Drain
from poller.source.reading import Get, read_pages
from poller.source.removing import settle_absent
from poller.source.result import RoundResult
from poller.source.unchanged import Standing, Unchanged
from poller.source.writing import RoundStore, Writer
from poller.store.feed import HeldElsewhere
from poller.store.state import (
    DELTA_TOKEN,
    FIELDS,
    GOOD_AT,
    HELD,
    QUERY,
    READ_AT,
    REFUSALS,
    RELEASED,
    RESYNC,
    ROUND,
    FeedState,
    fields_mark,
)

_NOT_FOUND = 404
_UNAUTHORIZED = 401

# The readings that find all of their listing in the store already, if it is as it was. In the others something is
# missing: the first reading itself, what a lost token may have skipped, or what another query asks for.
_ON_CONDITION = frozenset({Mode.FULL, Mode.RECONCILE})


async def poll(
    feed: Feed,
    store: RoundStore,
    get: Get,
    *,
    now: Callable[[], datetime],
    qualifications: Callable[[], Awaitable[Sequence[str]]],
    unchanged: Unchanged | None = None,
) -> RoundResult:
    """One round of one feed.

    Args:
        feed: what to read.
        store: where it is kept.
        get: one exchange with the API: path and parameters to body.
        now: the wall clock, UTC.
        qualifications: the ids that the source's other feeds have named so far.
        unchanged: what ``get`` belongs to, where listings are asked for on condition.
    """
    clock = asyncio.get_running_loop().time
    started = clock()
    try:
        state = await store.begin()
    except StoreError as error:
        return RoundResult(
            feed=feed.id, mode=Mode.SKIPPED, ok=False, seconds=round(clock() - started, 3), error=str(error)
        )
    if isinstance(state, HeldElsewhere):
        return RoundResult(feed=feed.id, mode=Mode.SKIPPED, ok=True, wait=state.remaining)
    reach("lease.taken")
    reading = _Reading(feed, store, get, state, now, unchanged=unchanged)
    failure = await reading.run(qualifications)
    result = reading.result(failure, seconds=clock() - started)
    if isinstance(failure, StoreUnavailable | Fenced | Stale):
        return result  # nothing can be written now that would not fail in the same way
    try:
        await reading.conclude(result, failure if isinstance(failure, RoundHeld) else None)
    except StoreError as unwritten:
        return msgspec.structs.replace(result, ok=False, error=result.error or str(unwritten))
    return result


class _Reading:
    """A round while it runs."""

    def __init__(
        self,
        feed: Feed,
        store: RoundStore,
        get: Get,
        state: FeedState,
        now: Callable[[], datetime],
        *,
        unchanged: Unchanged | None,
    ) -> None:
        self._feed = feed
        self._store = store
        self._get = get
        self._now = now
        self._begun = now()
        self._orders = {name: None for name, given in ((RELEASED, state.released), (RESYNC, state.resync)) if given}
        self._released = state.released
        self._writer = Writer(feed, store, state, now)
        self._pages = 0
        self._refused = state.refusals
        self._complete = 0  # listings
        self._as_before = 0  # listings that are unchanged, and were not read
        self._settled = False
        self._unchanged = unchanged
        self._delta_token: str | None = None
        self._mode, self._since = due(feed, state, self._begun)
        self._seen = Seen() if self._mode is not Mode.DELTA else None
        if unchanged is not None:
            usable = self._mode in _ON_CONDITION and not self._orders
            unchanged.begin(self._standing(state.read_at) if usable else None)

    async def run(self, qualifications: Callable[[], Awaitable[Sequence[str]]]) -> PollerError | None:
        """Read and commit all pages, then settle what is gone; answers what went wrong, if something did."""
        try:
            if self._feed.resource.per_qualification:
                await self._read_each(qualifications)
            else:
                await self._read_all()
            await self._settle_absent()
        except PollerError as failure:
            return failure
        reach("round.read")
        return None

    def result(self, failure: PollerError | None, *, seconds: float) -> RoundResult:
        """How it ended."""
        error = str(failure) if failure else None
        tally = self._writer.tally
        return RoundResult.of(self._feed.id, self._mode, tally, pages=self._pages, seconds=seconds, error=error)

    async def conclude(self, result: RoundResult, held: RoundHeld | None) -> None:
        """Commit what the round leaves behind: its result and, if it was complete, where the next one starts."""
        marks: dict[str, str | None] = {ROUND: msgspec.json.encode(result.public).decode()}
        if result.ok:
            marks[GOOD_AT] = recorded_time(self._now())
        if (result.ok or held) and self._complete:
            marks |= {QUERY: self._feed.fingerprint, FIELDS: fields_mark(self._feed.query.fields)}
            if self._delta_token and self._feed.delta:
                marks[DELTA_TOKEN] = self._delta_token
            elif self._mode is not Mode.DELTA:
                marks[DELTA_TOKEN] = None
            marks[REFUSALS] = str(self._refused) if self._refused and self._mode is not Mode.DELTA else None
            if self._mode is not Mode.DELTA:
                marks |= {READ_AT: recorded_time(self._begun), HELD: str(held) if held else None, **self._orders}
        elif result.ok and self._as_before:
            marks[READ_AT] = recorded_time(self._begun)
        await self._writer.marks(marks)
        if self._unchanged is not None and result.ok and self._mode is not Mode.DELTA:
            self._unchanged.keep(self._standing(self._begun) if self._settled else None)
        reach("round.done")

    def _standing(self, read_at: datetime | None) -> Standing:
        return Standing(*self._writer.place, recorded_time(read_at) if read_at else "")

    async def _read_all(self) -> None:
        try:
            await self._drain(self._feed.resource.path)
        except SourceRefused as refused:
            if refused.status not in self._feed.expired_statuses or not (self._since or self._pages):
                raise
            if self._since and not self._pages:
                # Whether the delta token is what the API does not like, the same request without it decides.
                self._refused += 1
                self._mode, self._since, self._seen = Mode.RESYNC, None, Seen()
            # Else a page token died on the way: once more from the start, and what was read already is silent.
            await self._drain(self._feed.resource.path)

    async def _read_each(self, qualifications: Callable[[], Awaitable[Sequence[str]]]) -> None:
        """Each listing by itself: one that cannot be read does not keep the others from being read."""
        named = await qualifications() if self._feed.discover else ()
        failures: list[SourceError] = []
        gone = 0
        for qualification in dict.fromkeys((*self._feed.qualifications, *named)):
            try:
                await self._drain(self._feed.resource.listing_path(qualification))
            except SourceRefused as refused:
                if refused.status == _UNAUTHORIZED:
                    raise
                if refused.status == _NOT_FOUND:
                    gone += 1  # a qualification that is gone lists nothing
                else:
                    failures.append(refused)
            except SourceNonsense as nonsense:
                failures.append(nonsense)
        if failures:
            more = f" (and {len(failures) - 1} more listings)" if len(failures) > 1 else ""
            raise SourceError(f"{failures[0]}{more}")
        if gone and not self._complete:
            raise SourceError(f"none of the {gone} qualifications has a listing: the API answered 404 to all of them")

    async def _drain(self, path: str) -> None:
        drain = Drain(self._feed.query, self._since)
        async with aclosing(read_pages(self._get, path, drain)) as pages:
            async for page in pages:
                reach("page.fetched")
                await self._writer.page(page, mode=self._mode, path=path, seen=self._seen)
                self._pages += 1
        if not drain.pages:
            self._as_before += 1
            return
        self._complete += 1
        self._delta_token = drain.delta_token

    async def _settle_absent(self) -> None:
        """After a full reading: remove what it did not hold. A baseline has nothing to compare with."""
        if not self._feed.removals:
            self._settled = True
        elif self._as_before:
            # What an unchanged listing holds was not seen. Nothing is gone if all of them are unchanged; else the next
            # round reads all, and finds out.
            self._settled = not self._pages and self._unchanged is not None and not self._unchanged.fewer
        elif self._seen is not None and self._mode is not Mode.BASELINE and self._complete:
            self._settled = await settle_absent(
                self._feed,
                self._store,
                self._get,
                self._seen,
                released=self._released,
                remove=partial(self._writer.remove, mode=self._mode),
                mark=self._writer.mark_missing,
            )
