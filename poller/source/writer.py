"""What a round writes: pages compared and committed, removals, and the marks it leaves behind.

Keeps the round's place in the feed (generation, sequence) and its tally, which counts what is committed and nothing
else. Refuses to know: tokens, paging, what kind of reading comes next.
"""

from __future__ import annotations

import asyncio
from codecs import BOM_UTF8
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Container, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import Final, Protocol, TypeVar

import msgspec

from poller.changes.diff import Snapshot, checked
from poller.changes.events import EventFrame, recorded_time
from poller.changes.held_versions import HeldVersion, VersionPolicy, full_reading_due
from poller.changes.plan import Commit, PublishRules, RecordCounts, SeenKeys, SubstreamSnapshot, plan, plan_removals
from poller.changes.records import Record, Rejected, identities, is_single, latest_versions, record_reader, shape_of
from poller.errors import RoundHeld, SourceError, SourceRefused
from poller.lifecycle import finished
from poller.source.envelope import Page
from poller.source.feed import Feed, RoundMode
from poller.source.paging import Get, slices
from poller.store.commands import Pause
from poller.store.feed import Absent, HeldElsewhere
from poller.store.feed_state import BACKWARDS, HELD_VERSIONS, MISSING_AT, SECOND_LOOK, TOMBSTONES, FeedState
from poller.telemetry import tracing


class SeenKeysObserver(Protocol):
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

    async def listings(self) -> dict[str, SubstreamSnapshot]:
        """Read what is kept of the listings."""
        ...

    async def held_versions(self) -> dict[str, HeldVersion]:
        """Read what is held back."""
        ...

    async def commit(self, commit: Commit) -> None:
        """Write all of it or nothing."""
        ...


class RoundWriter:
    """The writing side of one round of one feed.

    Attributes:
        tally: what became of the records.
        unidentified: how many records had no id that can be read.
        jumbled: how many of these may be several records in one.
    """

    def __init__(self, feed: Feed, store: RoundStore, state: FeedState, get: Get, now: Callable[[], datetime]) -> None:
        """Begin where the feed's state is; ``get`` asks for single records where a delta brings parts."""
        self.tally = RecordCounts()
        self.unidentified = self.jumbled = 0
        self._feed = feed
        self._store = store
        self._get = get
        self._now = now
        self._generation = state.generation
        self._sequence = state.sequence
        self._read = record_reader(feed.id_field)
        self._fields_before = state.fields
        self._rules = PublishRules(feed.strip, round_start=state.sequence)
        self._carried = tracing.current().carried
        self._first_marks: Mapping[str, str | None] = {}
        self._tombstones = state.tombstones or 0
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock() - state.now_ms / 1000
        self._begun_ms = state.now_ms
        self._held: dict[str, HeldVersion] = {}
        self._not_before = 0  # when the next full reading for these may begin
        self._backwards = state.backwards
        self._knows_records = bool(state.kept_records)

    def marks_with_first_records(self, marks: Mapping[str, str | None]) -> None:
        """Commit these marks along with the first records."""
        self._first_marks = marks

    async def load_held_versions(self) -> None:
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

    async def release_unseen(self, seen: Container[str]) -> None:
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

    def set_fields(self, fields: tuple[str, ...]) -> None:
        """What is read from now on holds these fields; empty: all."""
        self._rules = msgspec.structs.replace(self._rules, shape=shape_of(self._fields_before, fields))

    @property
    def position(self) -> tuple[str, int]:
        """Where the feed is: its generation, and the number of the last event."""
        return self._generation, self._sequence

    async def page(
        self,
        page: Page,
        *,
        mode: RoundMode,
        path: str,
        seen: SeenKeysObserver | None,
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
        silent = self._feed.silent_baseline and mode is RoundMode.BASELINE
        again = self._frame(RoundMode.FULL, path) if mode is RoundMode.BASELINE and self._knows_records else None
        partial = self._feed.partial and mode is RoundMode.DELTA
        holding = VersionPolicy(
            self._held,
            newest=self._feed.newest,
            begun=None if mode is RoundMode.DELTA else self._begun_ms,
            now=self._store_ms(),
            apart=self._feed.second_look,
        )
        rules = msgspec.structs.replace(self._rules, silent=silent, again=again, partial=partial, holding=holding)
        received = [self._read(raw) for raw in page.records]
        records = latest_versions(received, partial=partial)
        if newer:
            records = [one for one in records if not (isinstance(one, Record) and one.key in newer)]
        passed_over = len(received) - len(records)
        self.tally += RecordCounts(records=passed_over, unchanged=passed_over)
        keys = [record.key for record in received if isinstance(record, Record)]
        if seen is not None:
            seen.update(keys)
        known = await self._store.known(keys)
        if partial:
            readable = {key for key, snapshot in known.items() if not checked(snapshot).unreadable}
            records = await complete_records(records, readable, feed=self._feed, get=self._get)
        rejected: list[Rejected] = []
        async with commits_in_order(self._commit) as put:
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
                await put(
                    (self._with_tombstones(commit, -sum(_is_back(key, known) for key in commit.snapshots)), tally)
                )
                known.update(commit.snapshots)
                if changed is not None:
                    changed.update(key for key, one in commit.snapshots.items() if one.sequence > self._sequence)
                self._sequence = commit.next_sequence
        if rejected:
            await self._mark_seen(rejected, seen)

    async def _mark_seen(self, rejected: Iterable[Rejected], seen: SeenKeysObserver | None) -> None:
        """What cannot be used stands in the listing all the same."""
        keys: list[str] = []
        for one in rejected:
            found = identities(one.raw, self._feed.id_field)
            if found is None:
                self.unidentified += 1
                self.jumbled += not is_single(one.raw)
            else:
                keys += found
        if seen is None:
            return
        seen.update(keys)
        known = await self._store.known(keys)
        back = {key: msgspec.structs.replace(one, missing=False) for key, one in known.items() if one.missing}
        if back:
            await self._store.commit(Commit(self._generation, self._sequence, back))

    async def remove(self, gone: Mapping[str, Snapshot], *, mode: RoundMode) -> None:
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
        await self._commit((self._with_tombstones(planned[0], len(gone)), planned[1]))
        self._sequence = planned[0].next_sequence

    def _with_tombstones(self, commit: Commit, more: int) -> Commit:
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

    async def listings(self, listings: Mapping[str, SubstreamSnapshot]) -> None:
        """Commit what is to be kept of these listings."""
        await self._store.commit(Commit(self._generation, self._sequence, listings=listings))

    async def marks(self, marks: Mapping[str, str | None]) -> None:
        """Commit marks of the feed's state."""
        await self._store.commit(Commit(self._generation, self._sequence, marks=marks))

    def _store_ms(self) -> int:
        """The server's clock: as it was when the lease was taken, and the time lived since."""
        return int((self._clock() - self._began) * 1000)

    def _frame(self, mode: RoundMode, path: str) -> EventFrame:
        return self._feed.frame(generation=self._generation, mode=mode, path=path, extensions=self._carried)

    async def _commit(self, planned: tuple[Commit, RecordCounts]) -> None:
        commit, tally = planned
        if self._first_marks:
            commit = msgspec.structs.replace(commit, marks={**commit.marks, **self._first_marks})
            self._first_marks = {}
        await self._store.commit(commit)
        self.tally += tally


def _is_back(key: str, known: Mapping[str, Snapshot]) -> bool:
    before = known.get(key)
    return before is not None and before.removed


# Commits one after the other, each on its way while the next is being planned.
#
# Law: they are written in the order in which they were given, and none after one that failed. Planning takes this
# process' time, committing the store's: neither waits for the other, unless it is two commits ahead.

_LAST_WAIT: Final = 4.0  # seconds; a little more than a commit takes for itself
T = TypeVar("T")


@asynccontextmanager
async def commits_in_order(commit: Callable[[T], Awaitable[None]]) -> AsyncGenerator[Callable[[T], Awaitable[None]]]:
    """Gives a function that takes what ``commit`` is to write next; leaving the block waits until all are written.

    Whatever ``commit`` raises is raised by the next call of that function or at the end of the block. Left by an error
    or cancelled, the block drops what is only waiting and cancels what is on its way (which finishes it, see
    :meth:`poller.store.feed.FeedStore.commit`).
    """
    waiting: asyncio.Queue[T | None] = asyncio.Queue(maxsize=1)

    async def write() -> None:
        while (planned := await waiting.get()) is not None:
            await commit(planned)

    writing = asyncio.create_task(write())

    async def put(planned: T | None) -> None:
        putting = asyncio.create_task(waiting.put(planned))
        try:
            await asyncio.wait({putting, writing}, return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                writing.result()
        finally:
            putting.cancel()

    try:
        yield put
        await put(None)
        await writing
    finally:
        writing.cancel()  # reaches the commit that is on its way, which is finished, or the wait for the next
        await finished(writing, within=_LAST_WAIT)


# Records that are new and came in part: asked for by themselves, for a part is no record.
#
# A delta of parts says of a record that it has just been created only what the API takes for changed. Nothing is
# known
# that it could be laid over, so the whole is asked for where there is a single-record endpoint. What the API then
# does
# not have any more is kept as it came: that it existed is not to be lost.

_DETAILS_AT_ONCE: Final = 32
_GONE: Final = frozenset({404, 410})


async def complete_records(
    records: Sequence[Record | Rejected], known: Container[str], *, feed: Feed, get: Get
) -> list[Record | Rejected]:
    """The same, each that is not known as a whole.

    Args:
        records: of a page.
        known: the keys of those that something is known of.
        feed: whose records they are.
        get: one exchange with the API.

    Raises:
        SourceError: one of them could not be asked for.
    """
    whole = list(records)
    if feed.resource.detail_path is None:
        return whole
    places = [place for place, record in enumerate(records) if isinstance(record, Record) and record.key not in known]
    for start in range(0, len(places), _DETAILS_AT_ONCE):
        asked = places[start : start + _DETAILS_AT_ONCE]
        parts = [record for record in (records[place] for place in asked) if isinstance(record, Record)]
        answers = await asyncio.gather(*(_whole(part, feed, get) for part in parts), return_exceptions=True)
        for place, answer in zip(asked, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            whole[place] = answer
    return whole


async def _whole(part: Record, feed: Feed, get: Get) -> Record:
    path = feed.resource.record_path(part.subject)
    if path is None:
        return part
    try:
        body = await get(path, ())
    except SourceRefused as refused:
        if refused.status in _GONE:
            return part
        raise
    found = record_reader(feed.id_field)((body or b"").removeprefix(BOM_UTF8))
    return found if isinstance(found, Record) and found.key == part.key else part


# The end of a full reading: the records that it did not hold are looked for, and removed where they are gone.
#
# A record counts as gone when the API says so of itself twice (404 or 410 for ``GET …/{id}``): the first answer is
# asked
# for at once, the second after all first ones and at least :attr:`Feed.apart` later. An API behind two unequal
# backends
# says 404 now and then of what the other one has; one that lags for a moment has caught up by then.
#
# Where there is no single-record endpoint, or the id would lead to another path (``..``), a second full reading that
# does
# not hold it either has to do, which begins at least as much later; until then its snapshot is marked missing.
# Anything
# else that goes wrong ends the round and removes nothing more.

_REMOVED_AT_ONCE: Final = 256  # records looked for and removed together


class _Verdict(Enum):
    GONE = auto()
    HERE = auto()


WriteAbsent = Callable[[Mapping[str, Snapshot]], Awaitable[None]]
"""Commits what becomes of these records: removed, or marked missing."""


async def settle_absent(
    feed: Feed,
    store: RoundStore,
    get: Get,
    seen: SeenKeys,
    *,
    released: bool,
    since_marked: timedelta | None,
    remove: WriteAbsent,
    mark: WriteAbsent,
    keeps: Callable[[str, Snapshot], bool] = lambda *_: False,
) -> bool:
    """Find, confirm and remove what a complete reading did not hold.

    Answers whether that settled it: False where a record is known and not in the listing still, so that the next full
    reading has to look for it again, be the listing as it was or not.

    Args:
        feed: whose records they are.
        store: where the known ones are.
        get: one exchange with the API.
        seen: the keys of the reading; all that are absent are added.
        released: whether an operator has let through what the breaker holds.
        since_marked: how long before this reading records were last marked missing; None: never, or nobody knows.
        remove: commits the removal of records.
        mark: commits that records are missing for the first time.
        keeps: whether a record may be in a listing that was never read; then no reading confirms that it is gone.

    Raises:
        RoundHeld: too much is missing; nothing was removed.
        SourceError: a record could not be asked for; those that are gone beyond doubt are removed.
    """
    anything_read = bool(seen)
    absent = await store.absent(seen, most=_REMOVED_AT_ONCE)
    holds = feed.breaker.holds(missing=absent.missing, live=absent.live, anything_read=anything_read)
    if holds and not released:
        raise RoundHeld(
            f"{absent.missing} of {absent.live} known records are missing from the full reading: nothing is removed; "
            f"if they are really gone, let it through with: poller release {feed.id}"
        )
    too_soon = since_marked is not None and timedelta() <= since_marked < feed.apart
    readings = _AbsenceByReadings(remove, mark, too_soon=too_soon, keeps=keeps)
    if feed.resource.detail_path is None:
        return await _settle_by_readings(store, absent, seen, readings)
    return await _AbsenceByRequests(feed, store, get, remove, readings).settle(absent, seen)


class _AbsenceByReadings:
    """Absent records that cannot be asked for: a second reading has to miss them."""

    def __init__(
        self, remove: WriteAbsent, mark: WriteAbsent, *, too_soon: bool, keeps: Callable[[str, Snapshot], bool]
    ) -> None:
        # This reading confirms nothing, and what it is the first to miss the next one is the first to miss.
        self.too_soon = too_soon
        self._remove = remove
        self._mark = mark
        self._keeps = keeps

    async def settle(self, missing: Mapping[str, Snapshot]) -> bool:
        """Whether all of them are gone."""
        if not missing or self.too_soon:
            return not missing
        absent = {key: snapshot for key, snapshot in missing.items() if not self._keeps(key, snapshot)}
        await self._remove({key: snapshot for key, snapshot in absent.items() if snapshot.missing})
        unsure = {key: snapshot for key, snapshot in absent.items() if not snapshot.missing}
        # Of a snapshot that cannot be read nobody knows which listing it was in: it stays until the record is back.
        await self._mark({key: snapshot for key, snapshot in unsure.items() if not snapshot.unreadable})
        return not unsure and len(absent) == len(missing)


async def _settle_by_readings(store: RoundStore, absent: Absent, seen: SeenKeys, readings: _AbsenceByReadings) -> bool:
    if readings.too_soon:
        return not absent.missing
    settled = True
    while absent.some:
        settled = await readings.settle(absent.some) and settled
        seen.update(absent.some)
        absent = await store.absent(seen, most=_REMOVED_AT_ONCE)
    return settled


class _AbsenceByRequests:
    """Absent records of a feed with a single-record endpoint: each that can be asked for is, twice."""

    def __init__(
        self, feed: Feed, store: RoundStore, get: Get, remove: WriteAbsent, readings: _AbsenceByReadings
    ) -> None:
        self._feed = feed
        self._store = store
        self._get = get
        self._remove = remove
        self._readings = readings
        self._clock = asyncio.get_running_loop().time
        self._gone: list[tuple[float, list[str]]] = []  # by the first answers: when the last of them came, and whose

    async def settle(self, absent: Absent, seen: SeenKeys) -> bool:
        settled, failure = True, None
        try:
            while absent.some:
                settled = await self._asked_once(absent.some) and settled
                seen.update(absent.some)
                absent = await self._store.absent(seen, most=_REMOVED_AT_ONCE)
        except SourceError as error:  # of one record; what it does not concern is settled all the same
            failure = error
        for answered_at, keys in self._gone:
            await asyncio.sleep(max(answered_at + self._feed.apart.total_seconds() - self._clock(), 0))
            settled = await self._asked_again(keys) and settled
        if failure is not None:
            raise failure
        return settled

    async def _asked_once(self, absent: Mapping[str, Snapshot]) -> bool:
        paths = {key: self._feed.record_path(key, snapshot) for key, snapshot in absent.items()}
        settled = await self._readings.settle({key: absent[key] for key, path in paths.items() if path is None})
        verdicts = await _verdicts(self._get, {key: path for key, path in paths.items() if path is not None})
        gone = [key for key, verdict in verdicts.items() if verdict is _Verdict.GONE]
        if gone:
            self._gone.append((self._clock(), gone))
        return settled and len(gone) == len(verdicts)

    async def _asked_again(self, keys: list[str]) -> bool:
        known = await self._store.known(keys)
        paths = {key: self._feed.record_path(key, snapshot) for key, snapshot in known.items()}
        verdicts = await _verdicts(self._get, {key: path for key, path in paths.items() if path is not None})
        await self._remove({key: known[key] for key, verdict in verdicts.items() if verdict is _Verdict.GONE})
        return all(verdict is _Verdict.GONE for verdict in verdicts.values())


async def _verdicts(get: Get, paths: Mapping[str, str]) -> dict[str, _Verdict]:
    answers = await asyncio.gather(*(_verdict(get, path) for path in paths.values()), return_exceptions=True)
    verdicts: dict[str, _Verdict] = {}
    for key, answer in zip(paths, answers, strict=True):
        if isinstance(answer, BaseException):
            raise answer
        verdicts[key] = answer
    return verdicts


async def _verdict(get: Get, path: str) -> _Verdict:
    try:
        await get(path, ())
    except SourceRefused as refused:
        if refused.status in _GONE:
            return _Verdict.GONE
        raise
    return _Verdict.HERE
