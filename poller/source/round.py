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
from typing import Protocol

import msgspec

from poller.changes.classify import Snapshot
from poller.changes.commit import Commit, Tally
from poller.changes.events import EventFrame, recorded_time
from poller.changes.plan import Rules, plan
from poller.changes.records import Record, record_reader
from poller.errors import PollerError, SourceRefused, StoreError
from poller.failpoints import reach
from poller.source.committing import in_order
from poller.source.envelope import Page
from poller.source.feed import Feed, Mode, due
from poller.source.paging import Drain
from poller.source.reading import Get, read_pages, slices
from poller.source.result import RoundResult
from poller.store.feed import HeldElsewhere
from poller.store.state import DELTA_TOKEN, GOOD_AT, QUERY, READ_AT, ROUND, FeedState

_NOT_FOUND = 404


class RoundStore(Protocol):
    """What a round needs of the store; see :class:`poller.store.feed.FeedStore`."""

    async def begin(self) -> FeedState | HeldElsewhere:
        """Take the lease and read the state."""
        ...

    async def known(self, record_keys: list[str]) -> dict[str, Snapshot]:
        """Read snapshots."""
        ...

    async def commit(self, commit: Commit) -> None:
        """Write all of it or nothing."""
        ...


async def poll(
    feed: Feed,
    store: RoundStore,
    get: Get,
    *,
    now: Callable[[], datetime],
    qualifications: Callable[[], Awaitable[Sequence[str]]],
) -> RoundResult:
    """One round of one feed.

    Args:
        feed: what to read.
        store: where it is kept.
        get: one exchange with the API: path and parameters to body.
        now: the wall clock, UTC.
        qualifications: the ids that the source's other feeds have named so far.
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
    reading = _Reading(feed, store, get, state, now)
    failure = await reading.run(qualifications)
    result = reading.result(failure, seconds=clock() - started)
    if isinstance(failure, StoreError):
        return result  # what has just failed to be written to cannot keep the result either
    try:
        await reading.conclude(result)
    except StoreError as unwritten:
        return msgspec.structs.replace(result, ok=False, error=result.error or str(unwritten))
    return result


class _Reading:
    """A round while it runs."""

    def __init__(self, feed: Feed, store: RoundStore, get: Get, state: FeedState, now: Callable[[], datetime]) -> None:
        self.tally = Tally()
        self.pages = 0
        self._feed = feed
        self._store = store
        self._get = get
        self._now = now
        self._begun = now()
        self._generation = state.generation
        self._sequence = state.sequence
        self._delta_token: str | None = None
        self._something_read = False
        self._read = record_reader(feed.id_field)
        self.mode, self._since = due(feed, state, self._begun)

    async def run(self, qualifications: Callable[[], Awaitable[Sequence[str]]]) -> PollerError | None:
        """Read and commit all pages; answers what went wrong, if something did."""
        try:
            if self._feed.resource.per_qualification:
                await self._read_each(qualifications)
            else:
                await self._read_all()
        except PollerError as failure:
            return failure
        reach("round.read")
        return None

    def result(self, failure: PollerError | None, *, seconds: float) -> RoundResult:
        """How it ended."""
        error = str(failure) if failure else None
        return RoundResult.of(self._feed.id, self.mode, self.tally, pages=self.pages, seconds=seconds, error=error)

    async def conclude(self, result: RoundResult) -> None:
        """Commit what the round leaves behind: its result and, if it was a good one, where the next one starts."""
        marks: dict[str, str | None] = {ROUND: msgspec.json.encode(result.public).decode()}
        if result.ok:
            marks[GOOD_AT] = recorded_time(self._now())
        if result.ok and self._something_read:
            marks[QUERY] = self._feed.fingerprint
            if self._delta_token and self._feed.delta:
                marks[DELTA_TOKEN] = self._delta_token
            elif self.mode is not Mode.DELTA:
                marks[DELTA_TOKEN] = None
            if self.mode is not Mode.DELTA:
                marks[READ_AT] = recorded_time(self._begun)
        await self._store.commit(Commit(self._generation, self._sequence, marks=marks))
        reach("round.done")

    async def _read_all(self) -> None:
        try:
            await self._drain(self._feed.resource.path)
        except SourceRefused as refused:
            if self._since is None or self.pages or refused.status not in self._feed.expired_statuses:
                raise
            # Whether the token is what the API does not like, the same request without it decides.
            self.mode, self._since = Mode.RESYNC, None
            await self._drain(self._feed.resource.path)

    async def _read_each(self, qualifications: Callable[[], Awaitable[Sequence[str]]]) -> None:
        seen = await qualifications() if self._feed.discover else ()
        for qualification in dict.fromkeys((*self._feed.qualifications, *seen)):
            try:
                await self._drain(self._feed.resource.listing_path(qualification))
            except SourceRefused as refused:
                if refused.status != _NOT_FOUND:
                    raise
                self._something_read = True  # a qualification that is gone lists nothing

    async def _drain(self, path: str) -> None:
        drain = Drain(self._feed.query, self._since)
        frame = self._feed.frame(generation=self._generation, mode=self.mode, path=path)
        async with aclosing(read_pages(self._get, path, drain)) as pages:
            async for page in pages:
                reach("page.fetched")
                await self._write(page, frame)
                self.pages += 1
        self._something_read = True
        self._delta_token = drain.delta_token

    async def _write(self, page: Page, frame: EventFrame) -> None:
        rules = Rules(self._feed.strip, silent=self._feed.silent_baseline and self.mode is Mode.BASELINE)
        records = [self._read(raw) for raw in page.records]
        known = await self._store.known([record.key for record in records if isinstance(record, Record)])
        async with in_order(self._commit) as put:
            for part in slices(records):
                commit, tally = plan(
                    part,
                    known,
                    frame=frame,
                    generation=self._generation,
                    sequence=self._sequence,
                    recorded=recorded_time(self._now()),
                    rules=rules,
                )
                if commit.empty:
                    self.tally += tally
                    continue
                await put((commit, tally))
                known.update(commit.snapshots)
                self._sequence = commit.next_sequence

    async def _commit(self, planned: tuple[Commit, Tally]) -> None:
        commit, tally = planned
        await self._store.commit(commit)
        self.tally += tally
