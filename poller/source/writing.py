"""What a round writes: pages compared and committed, removals, and the marks it leaves behind.

Keeps the round's place in the feed (generation, sequence) and its tally, which counts what is committed and nothing
else. Refuses to know: tokens, paging, what kind of reading comes next.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from datetime import datetime
from typing import Protocol

import msgspec

from poller.changes.classify import Snapshot
from poller.changes.commit import Commit, Tally
from poller.changes.events import EventFrame, recorded_time
from poller.changes.listings import Listing
from poller.changes.plan import Rules, plan
from poller.changes.records import Record, record_reader
from poller.changes.removal import plan_removals
from poller.changes.shapes import shape_of
from poller.changes.versions import latest_versions
from poller.source.committing import in_order
from poller.source.completing import completed
from poller.source.envelope import Page
from poller.source.feed import Feed, Mode
from poller.source.reading import Get, slices
from poller.store.feed import Absent, HeldElsewhere
from poller.store.state import FeedState
from poller.telemetry import tracing


class Noted(Protocol):
    """Whoever wants to know the keys of a reading."""

    def update(self, keys: list[str], /) -> None:
        """Note that these keys were there."""
        ...


class RoundStore(Protocol):
    """What a round needs of the store; see :class:`poller.store.feed.FeedStore`."""

    async def begin(self) -> FeedState | HeldElsewhere:
        """Take the lease and read the state."""
        ...

    async def known(self, record_keys: list[str]) -> dict[str, Snapshot]:
        """Read snapshots."""
        ...

    async def absent(self, seen: Container[str], *, most: int) -> Absent:
        """The live snapshots that were not seen."""
        ...

    async def listings(self) -> dict[str, Listing]:
        """Read what is kept of the listings."""
        ...

    async def commit(self, commit: Commit) -> None:
        """Write all of it or nothing."""
        ...


class Writer:
    """The writing side of one round of one feed."""

    def __init__(self, feed: Feed, store: RoundStore, state: FeedState, get: Get, now: Callable[[], datetime]) -> None:
        """Begin where the feed's state is; ``get`` asks for single records where a delta brings parts."""
        self.tally = Tally()
        self._feed = feed
        self._store = store
        self._get = get
        self._now = now
        self._generation = state.generation
        self._sequence = state.sequence
        self._read = record_reader(feed.id_field)
        self._fields_before = state.fields
        self._rules = Rules(feed.strip, round_start=state.sequence)
        self._carried = tracing.current().carried

    def asking_for(self, fields: tuple[str, ...]) -> None:
        """What is read from now on holds these fields; empty: all."""
        self._rules = msgspec.structs.replace(self._rules, shape=shape_of(self._fields_before, fields))

    @property
    def place(self) -> tuple[str, int]:
        """Where the feed is: its generation, and the number of the last event."""
        return self._generation, self._sequence

    async def page(self, page: Page, *, mode: Mode, path: str, seen: Noted | None) -> None:
        """Commit what of this page is new, slice by slice; note its keys in ``seen`` where that is given."""
        frame = self._frame(mode, path)
        silent = self._feed.silent_baseline and mode is Mode.BASELINE
        partial = self._feed.partial and mode is Mode.DELTA
        rules = msgspec.structs.replace(self._rules, silent=silent, partial=partial)
        received = [self._read(raw) for raw in page.records]
        records = latest_versions(received, partial=partial)
        passed_over = len(received) - len(records)
        self.tally += Tally(records=passed_over, unchanged=passed_over)
        keys = [record.key for record in received if isinstance(record, Record)]
        if seen is not None:
            seen.update(keys)
        known = await self._store.known(keys)
        if partial:
            records = await completed(records, known, feed=self._feed, get=self._get)
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

    async def remove(self, gone: Mapping[str, Snapshot], *, mode: Mode) -> None:
        """Commit that these records are gone."""
        if not gone:
            return
        last = {key: self._feed.last_seen(snapshot) for key, snapshot in gone.items()}
        path_of = self._feed.resource.listing_path
        planned = plan_removals(
            {key: (record.subject, gone[key]) for key, record in last.items()},
            {key: self._frame(mode, path_of(record.qualification)) for key, record in last.items()},
            generation=self._generation,
            sequence=self._sequence,
            recorded=recorded_time(self._now()),
        )
        await self._commit(planned)
        self._sequence = planned[0].next_sequence

    async def mark_missing(self, missing: Mapping[str, Snapshot]) -> None:
        """Commit that these records were not there for the first time. No event."""
        if missing:
            marked = {key: msgspec.structs.replace(snapshot, missing=True) for key, snapshot in missing.items()}
            await self._store.commit(Commit(self._generation, self._sequence, marked))

    async def listings(self, listings: Mapping[str, Listing]) -> None:
        """Commit what is to be kept of these listings."""
        await self._store.commit(Commit(self._generation, self._sequence, listings=listings))

    async def marks(self, marks: Mapping[str, str | None]) -> None:
        """Commit marks of the feed's state."""
        await self._store.commit(Commit(self._generation, self._sequence, marks=marks))

    def _frame(self, mode: Mode, path: str) -> EventFrame:
        return self._feed.frame(generation=self._generation, mode=mode, path=path, extensions=self._carried)

    async def _commit(self, planned: tuple[Commit, Tally]) -> None:
        commit, tally = planned
        await self._store.commit(commit)
        self.tally += tally
