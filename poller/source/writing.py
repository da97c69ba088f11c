"""What a round writes: pages compared and committed, removals, and the marks it leaves behind.

Keeps the round's place in the feed (generation, sequence) and its tally, which counts what is committed and nothing
else. Refuses to know: tokens, paging, what kind of reading comes next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from poller.changes.classify import Snapshot, checked
from poller.changes.commit import Commit, Tally
from poller.changes.events import EventFrame, recorded_time
from poller.changes.held_versions import HeldVersion, Holding, full_reading_due
from poller.changes.listings import Listing
from poller.changes.plan import Rules, plan
from poller.changes.records import Record, Rejected, identities, record_reader
from poller.changes.removal import plan_removals
from poller.changes.shapes import shape_of
from poller.changes.versions import latest_versions
from poller.source.committing import in_order
from poller.source.completing import completed
from poller.source.envelope import Page
from poller.source.feed import Feed, Mode
from poller.source.reading import Get, slices
from poller.store.feed import Absent, HeldElsewhere
from poller.store.pauses import Pause
from poller.store.state import BACKWARDS, HELD_VERSIONS, MISSING_AT, SECOND_LOOK, TOMBSTONES, FeedState
from poller.telemetry import tracing


class Noted(Protocol):
    """Whoever wants to know the keys of a reading."""

    def update(self, keys: list[str], /) -> None:
        """Note that these keys were there."""
        ...


class RoundStore(Protocol):
    """What a round needs of the store; see :class:`poller.store.feed.FeedStore`."""

    async def begin(self) -> FeedState | HeldElsewhere | Pause:
        """Take the lease and read the state, unless the feed is paused."""
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

    async def held_versions(self) -> dict[str, HeldVersion]:
        """Read what is held back."""
        ...

    async def commit(self, commit: Commit) -> None:
        """Write all of it or nothing."""
        ...


class Writer:
    """The writing side of one round of one feed.

    Attributes:
        tally: what became of the records.
        unidentified: how many records, of the readings whose keys were noted, had no id that can be read.
    """

    def __init__(self, feed: Feed, store: RoundStore, state: FeedState, get: Get, now: Callable[[], datetime]) -> None:
        """Begin where the feed's state is; ``get`` asks for single records where a delta brings parts."""
        self.tally = Tally()
        self.unidentified = 0
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
        self._first_marks: Mapping[str, str | None] = {}
        self._tombstones = state.tombstones or 0
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock() - state.now_ms / 1000
        self._begun_ms = state.now_ms
        self._held: dict[str, HeldVersion] = {}
        self._not_before = 0  # when the next full reading for these may begin
        self._backwards = state.backwards

    def marks_with_first_records(self, marks: Mapping[str, str | None]) -> None:
        """Commit these marks along with the first records."""
        self._first_marks = marks

    async def recall(self) -> None:
        """Read what is held back. Where that is known to be nothing, it need not be called."""
        self._held = await self._store.held_versions()

    @property
    def held_versions(self) -> int:
        """How many versions are held back."""
        return len(self._held)

    @property
    def second_look(self) -> timedelta | None:
        """After how long a full reading is due for these; None where none are."""
        due = self._second_look_ms
        return None if due is None else timedelta(milliseconds=max(due - self._store_ms(), 0))

    async def let_go(self, seen: Container[str]) -> None:
        """A full reading has come to its end: what it did not show at all is not held back any more."""
        gone = {key: None for key in self._held if key not in seen}
        self._not_before = self._store_ms() + int(self._feed.second_look.total_seconds() * 1000)
        if gone or self._held:
            await self._store.commit(self._with_marks(Commit(self._generation, self._sequence, held=gone), 0))

    @property
    def _second_look_ms(self) -> int | None:
        due = full_reading_due(self._held.values(), apart=self._feed.second_look)
        return None if due is None else max(due, self._not_before)

    def _with_marks(self, commit: Commit, backwards: int) -> Commit:
        """The same with what it means for the marks of versions that go back."""
        for key, held in commit.held.items():
            if held is None:
                self._held.pop(key, None)
            else:
                self._held[key] = held
        self._backwards += backwards
        due = self._second_look_ms
        marks = {
            BACKWARDS: str(self._backwards) if self._backwards else None,
            HELD_VERSIONS: str(len(self._held)) if self._held else None,
            SECOND_LOOK: None if due is None else str(due),
        }
        return msgspec.structs.replace(commit, marks={**commit.marks, **marks})

    def asking_for(self, fields: tuple[str, ...]) -> None:
        """What is read from now on holds these fields; empty: all."""
        self._rules = msgspec.structs.replace(self._rules, shape=shape_of(self._fields_before, fields))

    @property
    def place(self) -> tuple[str, int]:
        """Where the feed is: its generation, and the number of the last event."""
        return self._generation, self._sequence

    async def page(
        self,
        page: Page,
        *,
        mode: Mode,
        path: str,
        seen: Noted | None,
        changed: set[str] | None = None,
        newer: Collection[str] = (),
    ) -> None:
        """Commit what of this page is new, slice by slice.

        Args:
            page: what was read.
            mode: the cause of what is published.
            path: of the listing.
            seen: is told the keys of the page's records.
            changed: is told the keys of those that are published.
            newer: the keys of records of which a newer version may be known; they are seen and not compared.
        """
        frame = self._frame(mode, path)
        silent = self._feed.silent_baseline and mode is Mode.BASELINE
        partial = self._feed.partial and mode is Mode.DELTA
        holding = Holding(
            self._held,
            newest=self._feed.newest,
            begun=None if mode is Mode.DELTA else self._begun_ms,
            now=self._store_ms(),
            apart=self._feed.second_look,
        )
        rules = msgspec.structs.replace(self._rules, silent=silent, partial=partial, holding=holding)
        received = [self._read(raw) for raw in page.records]
        records = latest_versions(received, partial=partial)
        if newer:
            records = [one for one in records if not (isinstance(one, Record) and one.key in newer)]
        passed_over = len(received) - len(records)
        self.tally += Tally(records=passed_over, unchanged=passed_over)
        keys = [record.key for record in received if isinstance(record, Record)]
        if seen is not None:
            seen.update(keys)
        known = await self._store.known(keys)
        if partial:
            readable = {key for key, snapshot in known.items() if not checked(snapshot).unreadable}
            records = await completed(records, readable, feed=self._feed, get=self._get)
        rejected: list[Rejected] = []
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
                rejected += [one for one in commit.rejected if not one.is_snapshot]
                if tally.backwards or commit.held:
                    commit = self._with_marks(commit, tally.backwards)
                if commit.empty:
                    self.tally += tally
                    continue
                await put((self._recounted(commit, -sum(_is_back(key, known) for key in commit.snapshots)), tally))
                known.update(commit.snapshots)
                if changed is not None:
                    changed.update(key for key, one in commit.snapshots.items() if one.sequence > self._sequence)
                self._sequence = commit.next_sequence
        if rejected and seen is not None:
            await self._note(rejected, seen)

    async def _note(self, rejected: Iterable[Rejected], seen: Noted) -> None:
        """What cannot be used stands in the listing all the same."""
        found = [identities(one.raw, self._feed.id_field) for one in rejected]
        self.unidentified += found.count(None)
        keys = [key for some in found if some is not None for key in some]
        seen.update(keys)
        known = await self._store.known(keys)
        back = {key: msgspec.structs.replace(one, missing=False) for key, one in known.items() if one.missing}
        if back:
            await self._store.commit(Commit(self._generation, self._sequence, back))

    async def remove(self, gone: Mapping[str, Snapshot], *, mode: Mode) -> None:
        """Commit that these records are gone."""
        if not gone:
            return
        last = {key: self._feed.last_seen(key, snapshot) for key, snapshot in gone.items()}
        path_of = self._feed.resource.listing_path
        planned = plan_removals(
            {key: (record.subject, gone[key]) for key, record in last.items()},
            {key: self._frame(mode, path_of(record.qualification)) for key, record in last.items()},
            generation=self._generation,
            sequence=self._sequence,
            recorded=recorded_time(self._now()),
        )
        await self._commit((self._recounted(planned[0], len(gone)), planned[1]))
        self._sequence = planned[0].next_sequence

    def _recounted(self, commit: Commit, more: int) -> Commit:
        """The commit with the number of tombstones, if it changes that."""
        if not more:
            return commit
        self._tombstones = max(self._tombstones + more, 0)
        return msgspec.structs.replace(commit, marks={**commit.marks, TOMBSTONES: str(self._tombstones)})

    async def mark_missing(self, missing: Mapping[str, Snapshot]) -> None:
        """Commit that these records were not there for the first time. No event."""
        if missing:
            marked = {key: msgspec.structs.replace(snapshot, missing=True) for key, snapshot in missing.items()}
            marks = {MISSING_AT: str(self._store_ms())}
            await self._store.commit(Commit(self._generation, self._sequence, marked, marks=marks))

    async def listings(self, listings: Mapping[str, Listing]) -> None:
        """Commit what is to be kept of these listings."""
        await self._store.commit(Commit(self._generation, self._sequence, listings=listings))

    async def marks(self, marks: Mapping[str, str | None]) -> None:
        """Commit marks of the feed's state."""
        await self._store.commit(Commit(self._generation, self._sequence, marks=marks))

    def _store_ms(self) -> int:
        """The server's clock: as it was when the lease was taken, and the time lived since."""
        return int((self._clock() - self._began) * 1000)

    def _frame(self, mode: Mode, path: str) -> EventFrame:
        return self._feed.frame(generation=self._generation, mode=mode, path=path, extensions=self._carried)

    async def _commit(self, planned: tuple[Commit, Tally]) -> None:
        commit, tally = planned
        if self._first_marks:
            commit = msgspec.structs.replace(commit, marks={**commit.marks, **self._first_marks})
            self._first_marks = {}
        await self._store.commit(commit)
        self.tally += tally


def _is_back(key: str, known: Mapping[str, Snapshot]) -> bool:
    before = known.get(key)
    return before is not None and before.removed
