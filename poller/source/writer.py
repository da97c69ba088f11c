"""Writes one round: pages compared and committed, removals, and marks.

Theory of operation
-------------------
Commits are written one after the other, in order, and none after one that failed. While one is being written, the next
ones are planned, also those of the next page; at most three are not written. The snapshots of a page are read when all
commits are written that hold one of its keys; where the feed had none when the round began, only those of records that
this round has met before. Everything else that is written waits until all commits are.

A delta of parts (``partial``) may say of a new record only what the API takes for changed. There is no snapshot to
merge it with, and that of a removed record may hold what is not true of one that returns, so the whole record is
requested from the single-record endpoint. If that is older than the part, the part is laid over it. If the API does not
have it any more, the part is published, over the last version of a removed one, so that the record is not lost. It may
have no record that can be requested so, and a full reading follows, which brings what the part lacks. That one is due
is committed together with the part, for the round may end before its own end is committed.

**Invariants**

- The tally counts what is committed and nothing else.
- A record that cannot be used still counts as listed: it is not removed.
- A copy of a listing that a cache had kept is the reading that it was made in: it does not confirm an older version
  that it has shown itself.
- The writer does not know tokens, paging, or which reading comes next.
"""

from __future__ import annotations

import asyncio
from codecs import BOM_UTF8
from collections import deque
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, contextmanager, nullcontext
from datetime import datetime, timedelta
from hashlib import blake2b
from itertools import compress
from operator import not_
from types import MappingProxyType
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from poller.changes.canonical import canonical, encode, parse_received, without
from poller.changes.diff import Snapshot, checked, compare
from poller.changes.events import Cause, EventFrame
from poller.changes.full_readings import (
    DeltaMemory,
    DeltaVersions,
    HeldVersion,
    KeyCounts,
    OlderVersions,
    VersionPolicy,
    full_reading_due,
)
from poller.changes.layouts import Layout
from poller.changes.plan import Commit, MetKeys, PublishRules, RoundCounts, SubstreamSnapshot, plan, plan_removals
from poller.changes.records import (
    Record,
    Rejected,
    alike_reader,
    identities,
    is_older,
    is_single,
    latest_versions,
    merged,
    modified_of,
    probable_keys,
    record_reader,
    records_reader,
    shape_of,
    twin_of,
    usable_keys,
)
from poller.clock import Clock, rfc3339
from poller.errors import SourceError, SourceRefused, StoreError
from poller.lifecycle import finished, give_way, in_turns
from poller.source.feed import Feed, RoundMode
from poller.source.paging import SLICE_BYTES, SLICE_RECORDS, Get, Page, slices
from poller.store.commands import FeedPause
from poller.store.feed import MissingRecords, PackedCommit, PublishedVersion
from poller.store.feed_state import (
    BACKWARDS,
    DELTA_TOKEN,
    HELD_VERSIONS,
    MISSING_AT,
    RECHECK_AT,
    ROTATION,
    SECOND_LOOK,
    TAKEN_OVER,
    TOKEN_SEQUENCE,
    TOMBSTONES,
    FeedState,
    IdleStart,
)
from poller.store.lease import HeldElsewhere
from poller.store.snapshots import PackedSnapshots
from poller.telemetry import tracing

_MOST_WRITTEN: Final = 10_000  # keys
_AT_ONCE: Final = 1000  # records that are read without a pause
_LISTINGS_TOGETHER: Final = 64  # in one commit
_BATCH_BYTES: Final = 4 * 1024 * 1024  # of known records that are compared, removed or marked together
T = TypeVar("T")


class SeenKeysObserver(Protocol):
    """Receives the keys of a reading: those of a listing, or the deltas beside it."""

    def update(self, keys: list[str], /) -> None:
        """Add keys that were listed."""
        ...

    def __contains__(self, key: object, /) -> bool:
        """Whether a key was listed."""
        ...


class ListedKeys(SeenKeysObserver, KeyCounts, Protocol):
    """The keys of a full reading of one listing."""


class RoundStore(Protocol):
    """The store of one feed as its round uses it; see :class:`poller.store.feed.FeedStore`.

    Attributes:
        deltas: what they have brought, as far as this process knows.
        keeps_removed: whether the content of removed records is kept for a while.
    """

    deltas: DeltaMemory
    keeps_removed: bool

    @property
    def state_digest(self) -> bytes:
        """The digest of the state as the round found it; empty: something was wrong, or was written since."""
        ...

    @property
    def layout(self) -> Layout | None:
        """The layout that most of the feed's records are likely to have; None: none is known."""
        ...

    @property
    def idle_start(self) -> IdleStart | None:
        """Where the next delta starts if the store need not be asked first."""
        ...

    async def end_idle_round(self, start: IdleStart, commit: Commit) -> bool:
        """Write the marks of a round without news, if the feed is as it is known."""
        ...

    async def open_round(self) -> FeedState | HeldElsewhere | FeedPause:
        """Acquire the lease and read the state, unless the feed is paused."""
        ...

    async def known(self, record_keys: list[str]) -> Mapping[str, Snapshot]:
        """Read snapshots."""
        ...

    async def are_stored(self, record_keys: list[str], raws: Sequence[bytes]) -> list[bool] | None:
        """Compare records with their snapshots without unpacking these; None: not possible."""
        ...

    async def absent(self, seen: Container[str], *, most: int, known: int | None = None) -> MissingRecords:
        """Read live snapshots that were not seen; ``known``: how many were, if all that was seen is live."""
        ...

    async def subjects_since(self, age: timedelta, *, cause: str | None = None) -> Collection[str]:
        """Read the subjects of the latest events, or of those of one cause."""
        ...

    def published_since(self, sequence: int) -> AsyncGenerator[PublishedVersion]:
        """Read what was published after this event, the latest first."""
        ...

    async def page_digests(self) -> bytes | None:
        """Read the digests of the pages of the last full reading."""
        ...

    async def listings(self) -> dict[str, SubstreamSnapshot]:
        """Read the snapshots of the feed's listings."""
        ...

    async def held_versions(self) -> dict[str, HeldVersion]:
        """Read the versions that are held back."""
        ...

    def pack(self, commit: Commit) -> PackedCommit | None:
        """Prepare a commit while others are written."""
        ...

    async def commit(self, commit: Commit) -> None:
        """Write all of it or nothing."""
        ...

    async def write(self, commit: Commit, packed: PackedCommit | None) -> None:
        """Write all of it or nothing, in a task that is not cancelled."""
        ...


class _PlannedCommit(NamedTuple):
    """A commit that waits to be written, what it counts, and what was prepared of it."""

    commit: Commit
    tally: RoundCounts
    packed: PackedCommit | None


class RoundWriter:
    """Writes one round of one feed.

    Attributes:
        tally: the counters of what is committed.
        pages: how many were planned; all are committed where a block of :meth:`commits_in_order` has ended.
        backwards: how many versions were older than the known one.
        unidentified: how many records had no id that can be read.
        jumbled: how many of these may be several records in one.
        fragments: how many records of deltas may not be as they are known: of new ones a part was published alone, or a
            version was passed over that is older than one before and was not there before that, or a delta has shown
            too much to tell. What deltas repeat counts in the first ones only.
        has_listed: whether a full reading has listed anything.
        recheck_at: when a full reading looks once more for what the listing did not show, as the state had it or a mark
            beside no record has it; None: none does.
        unsettled: how many listed versions are not what is known: they are held back, or older than one before.
        lists_known: whether each record that was listed is known as it was listed.
        passed_over: how many records of a full reading differ from what is known and were not compared, because a delta
            has brought them lately.
    """

    def __init__(
        self,
        feed: Feed,
        store: RoundStore,
        state: FeedState,
        get: Get,
        clock: Clock,
        *,
        age: Callable[[], timedelta] = timedelta,
        follows_others: bool = False,
    ) -> None:
        """Start from the feed's state.

        Args:
            feed: what is read.
            store: where it is written.
            state: of the feed.
            get: requests single records.
            clock: of this process.
            age: how long a cache had kept the oldest answer of the reading so far.
            follows_others: whether it is at least the second reading that looks for what the ones before passed over.
        """
        self._age = age
        self._follows_others = follows_others
        self.tally = RoundCounts()
        self.pages = 0
        self.unidentified = self.jumbled = self.fragments = self.backwards = self.passed_over = self.unsettled = 0
        self.has_listed, self.lists_known = False, True
        self._feed = feed
        self._store = store
        self._get = get
        self._generation = state.generation
        self._sequence = self._delta_start = self._round_start = state.sequence
        self._read, self._read_alike = records_reader(feed.id_field), alike_reader(feed.id_field)
        self._token = state.delta_token
        self._token_sequence = sequence_of_token(state.token_sequence, state.delta_token)
        self._open_token: str | None = None  # of the delta that is being read, or was broken off in this round
        self._has_ended = False  # a delta, and that is not committed yet
        self._fields_before = state.fields
        self._commits: CommitQueue[_PlannedCommit] = CommitQueue()
        self._depth = 0  # of blocks within each other
        self._rules = PublishRules(without(feed.ignore) if feed.ignore else None, round_start=state.sequence)
        self._versions = DeltaVersions()  # which the delta has shown that is being read
        self._doubted: set[str] = set()  # names of what this delta has left in doubt
        self.recheck_at = state.recheck_at
        self._carried = tracing.current().carried
        self._first_marks: Mapping[str, str | None] = {}
        self._marks_of_parts: Callable[[], Mapping[str, str | None]] = dict
        self._with_records: Callable[[], Mapping[str, SubstreamSnapshot]] = dict
        self._listings: dict[str, SubstreamSnapshot] = {}  # for the next commit
        self._tombstones = state.tombstones or 0
        self._taken_over = state.taken_over
        self._clock = clock
        self._began = clock.monotonic() - state.now_ms / 1000
        self._begun_ms = state.now_ms
        self._held: dict[str, HeldVersion] = {}
        self._written: set[str] | None = set()  # keys of records written in this round; None: too many to know
        self._waits_for_second_look = state.second_look is not None  # ends even if the held versions were lost
        self._not_before = 0  # when the next full reading for these may begin
        self._backwards = state.backwards
        # Records of a replaced store were never published from here: they are a baseline.
        self._may_know = state.kept_records != 0
        self._met = None if self._may_know else MetKeys()
        self._knows_records = bool(state.kept_records) and state.loss is None

    def marks_with_first_records(self, marks: Mapping[str, str | None]) -> None:
        """Commit these marks together with the first records."""
        self._first_marks = marks

    def marks_with_parts(self, marks: Callable[[], Mapping[str, str | None]]) -> None:
        """Commit these marks together with records of which only a part is known, and where records are passed over."""
        self._marks_of_parts = marks

    @contextmanager
    def with_records(self, listings: Callable[[], Mapping[str, SubstreamSnapshot]]) -> Iterator[None]:
        """Commit these listings together with the records of the block; called for each commit."""
        self._with_records = listings
        try:
            yield
        finally:
            self._with_records = dict

    async def load_held_versions(self) -> None:
        """Read which versions are held back. Not needed if the state says that there are none."""
        self._held = await self._store.held_versions()

    def is_repeated(self, key: str, age: timedelta) -> bool:
        """Whether deltas have brought this record as it is for this time.

        This process may not know of the deltas before. But in a reading that follows others, because they have passed
        over something, a record is not new that no delta has changed lately.
        """
        if self._store.deltas.is_repeated(key, age):
            return True
        knows_little = self._follows_others and not self._store.deltas.has_followed(age)
        return knows_little and self._written is not None and key not in self._written

    @property
    def held_versions(self) -> int:
        """The number of versions that are held back."""
        return len(self._held)

    @property
    def second_look(self) -> timedelta | None:
        """After how long a full reading is due for held versions; None: none are held."""
        due = self._second_look_ms
        return None if due is None else timedelta(milliseconds=max(due - self._store_ms(), 0))

    async def release_unseen(self, seen: Container[str]) -> None:
        """Forget the held versions of records that a full reading did not list."""
        gone = {key: None for key in self._held if key not in seen}
        self._not_before = self._store_ms() + int(self._feed.second_look.total_seconds() * 1000)
        if gone or self._held or self._waits_for_second_look:
            await self._commit(self._with_marks(Commit(self._generation, self._sequence, held=gone)))

    @property
    def _second_look_ms(self) -> int | None:
        due = full_reading_due(self._held.values(), apart=self._feed.second_look)
        return None if due is None else max(due, self._not_before)

    def _with_marks(self, commit: Commit) -> Commit:
        """The commit, with the marks of held versions."""
        for key, held in commit.held.items():
            if held is None:
                self._held.pop(key, None)
            else:
                self._held[key] = held
        self._backwards += commit.backwards
        due = self._second_look_ms
        marks = {
            BACKWARDS: str(self._backwards) if self._backwards else None,
            HELD_VERSIONS: str(len(self._held)) if self._held else None,
            SECOND_LOOK: None if due is None else str(due),
        }
        return msgspec.structs.replace(commit, marks={**commit.marks, **marks})

    def set_fields(self, fields: tuple[str, ...]) -> None:
        """Read records with these fields from now on; empty: all."""
        self._rules = msgspec.structs.replace(self._rules, shape=shape_of(self._fields_before, fields))

    async def begin_delta(self, token: str | None) -> None:
        """Start another delta, from a token: what it shows is newer than what was published before.

        If it was begun before and broken off, it goes on.

        Raises:
            StoreError: what was published of it could not be read.
        """
        self._versions = DeltaVersions(
            self._form if self._rules.strip else None, members=self._members if self._feed.partial else None
        )
        start = self._token_sequence
        self._delta_start = self._sequence if start is None else start
        self._open_token, self._has_ended = token, False
        if start is not None and start < self._round_start:
            await self._resume_delta(start)
        self._store.deltas.start(token)

    async def _resume_delta(self, start: int) -> None:
        read = record_reader(self._feed.id_field)
        async with aclosing(self._store.published_since(start)) as published:
            async for one in published:
                record = None if one.raw is None else read(one.raw)
                if isinstance(record, Rejected):
                    continue
                if not self._versions.resume(one.subject, record):
                    break

    def repeat_delta(self) -> bool:
        """Start to read the same delta again: only what it did not show before counts.

        False: it has shown too much to tell. A full reading will say what it has missed.
        """
        if self._versions.is_full:
            return False
        self._count_returned()
        self._versions.repeat()
        return True

    def end_delta(self, token: str | None) -> None:
        """A delta was read to its end, and this is the token for the next one."""
        self._count_returned()
        self._open_token, self._has_ended = None, True
        self._store.deltas.finish(token)

    async def break_off_delta(self) -> None:
        """A delta could not be read to its end. What it leaves in doubt is looked for although it has no end.

        Raises:
            StoreError: that this is due could not be written.
        """
        self._count_returned()
        if self.doubts:
            await self.marks(self._marks_of_parts())

    def keep_doubts(self) -> None:
        """Note what deltas have left in doubt, once it is committed that a full reading follows."""
        self._store.deltas.add(self._doubted)
        self._doubted.clear()

    @property
    def doubts(self) -> int:
        """How many records could not be distinguished, or may not be as they are known after a delta."""
        return self.jumbled + self.fragments

    @property
    def position(self) -> tuple[str, int]:
        """The feed's generation and the number of its last event."""
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
        is_known: bool = False,
        older: OlderVersions | None = None,
    ) -> bool:
        """Commit the changes of this page, slice by slice; whether all of its records are now as they are stored.

        Args:
            page: what was read.
            mode: the cause of the events.
            path: of the listing.
            seen: receives the keys of the page's records.
            changed: receives the keys of those that are published.
            newer: keys of records of which a newer version may be known; they count as seen and are not compared.
            is_known: whether the records were as they are stored when the round began.
            older: receives versions that are older than the known ones; None: they are compared like others.
        """
        is_stored = True
        self.has_listed = self.has_listed or (bool(page.results) and mode is not RoundMode.DELTA)
        if page.results and not (is_known and self._pass_over(page, seen)):  # most deltas have none
            is_stored = await self._page(
                page.records, mode=mode, path=path, seen=seen, changed=changed, newer=newer, older=older
            )
        self.lists_known = self.lists_known and is_stored
        counted = self._commits.unwritten[-1].tally if self._commits.unwritten else self.tally  # once it is committed
        counted.pages += 1
        self.pages += 1
        return is_stored

    async def end_listing(
        self,
        older: OlderVersions,
        listed: ListedKeys,
        *,
        mode: RoundMode,
        path: str,
        changed: set[str] | None = None,
        newer: Collection[str] = (),
    ) -> None:
        """Commit the changes to versions that :meth:`page` has put off, unless a newer one was listed as well.

        Args:
            older: those versions.
            listed: the keys of the listing.
            mode: the cause of the events.
            path: of the listing.
            changed: receives the keys of those that are published.
            newer: keys of records of which a newer version may be known; they are not compared.
        """
        left, superseded = older.at_end(listed)
        self.tally += RoundCounts(records=superseded, unchanged=superseded)
        if left:
            raws = [one.raw for one in left]
            await self._page(raws, mode=mode, path=path, seen=None, changed=changed, newer=newer, older=None)

    def _pass_over(self, page: Page, seen: SeenKeysObserver | None) -> bool:
        """Count a page that is unchanged; False: one of its records was written in this round, or may have been."""
        keys = usable_keys(page.results, self._feed.id_field)
        if keys is None or self._written is None or not self._written.isdisjoint(keys):
            return False
        if seen is not None:
            seen.update(keys)
        self.tally += RoundCounts(records=len(keys), unchanged=len(keys))
        return True

    async def _page(
        self,
        listed: Sequence[bytes],
        *,
        mode: RoundMode,
        path: str,
        seen: SeenKeysObserver | None,
        changed: set[str] | None,
        newer: Collection[str],
        older: OlderVersions | None,
    ) -> bool:
        frame, rules = self._frame(mode, path), self._rules_for(mode, path, puts_off=bool(older and older.has_room))
        partial = rules.partial
        differing = await self._without_stored(listed, mode=mode, seen=seen)
        if not differing:
            return True
        received = await self._identified(differing, mode)
        found = self._versions.new(received) if mode is RoundMode.DELTA else received
        records = await in_turns(latest_versions(found, partial=partial))
        left = [one for one in records if isinstance(one, Record) and one.key in newer] if newer else []
        if left:
            records = [one for one in records if not (isinstance(one, Record) and one.key in newer)]
        passed_over = len(received) - len(records)
        self.tally += RoundCounts(records=passed_over, unchanged=passed_over)
        keys = [record.key for record in received if isinstance(record, Record)]
        self._note_listed(keys, mode, seen)
        # An id that a delta has in another JSON type than the listing beside it is the same: it has changed its type.
        known = await self._known(keys, None if mode is RoundMode.DELTA else seen)
        await self._count_passed_over(left, known, rules)
        if mode is RoundMode.DELTA:
            rules = msgspec.structs.replace(rules, shown=self._versions)
            self._count_doubts(found, known)
        marks: Mapping[str, str | None] = {}
        if partial:
            records, rules, marks = await self._completed(records, known, rules)
        rejected: list[Rejected] = []
        put_off: list[Record] = []
        is_stored = not passed_over
        async with nullcontext() if self._depth else self.commits_in_order():
            for part, before in _with_snapshots(records, known):
                await asyncio.sleep(0)
                commit, tally = plan(
                    part,
                    before,
                    frame=frame,
                    generation=self._generation,
                    sequence=self._sequence,
                    recorded=rfc3339(self._clock.now()),
                    rules=rules,
                )
                put_off += commit.put_off
                rejected += [one for one in commit.rejected if not one.is_snapshot]
                is_stored = self._is_stored(commit, mode) and is_stored
                if commit.backwards or commit.held:
                    commit = self._with_marks(commit)
                if marks and commit.snapshots:
                    commit = msgspec.structs.replace(commit, marks={**commit.marks, **marks})
                if commit.empty:
                    self.tally += tally
                    continue
                back = sum(_is_back(key, before) for key in commit.snapshots) if before else 0
                await self._put(self._with_tombstones(commit, -back), tally)
                self._note_published(commit, mode, changed)
                self._sequence = commit.next_sequence
        await self._mark_seen(rejected, seen, mode)
        if older is not None:
            older.put_off(put_off, keys)
        self._note_shown(received, mode)
        return is_stored

    async def _identified(self, raws: Sequence[bytes], mode: RoundMode) -> list[Record | Rejected]:
        received: list[Record | Rejected] = []
        for some in _batched(raws):
            layout = self._store.layout if mode is RoundMode.BASELINE else None  # others read few that are new
            received += (layout and self._read_alike(some, layout)) or self._read(some)
            await asyncio.sleep(0)
        return received

    async def _without_stored(
        self, records: Sequence[bytes], *, mode: RoundMode, seen: SeenKeysObserver | None
    ) -> Sequence[bytes]:
        """The records of a page that may differ from what is stored; the others are listed and counted."""
        stored: list[str] = []
        keys = None if mode in (RoundMode.DELTA, RoundMode.BASELINE) else await self._distinct_keys(records)
        if keys is None:
            return records
        await self._until_written(keys)
        differing: list[bytes] = []
        for some, asked in zip(_batched(records), _batched(keys), strict=True):
            same = await self._store.are_stored(list(asked), some)
            if same is None:
                return records
            if self._held:  # these are held back no more
                same = [one and key not in self._held for one, key in zip(same, asked, strict=True)]
            stored += compress(asked, same)
            differing += compress(some, map(not_, same))
        if seen is not None:
            seen.update(stored)
        self.tally += RoundCounts(records=len(stored), unchanged=len(stored))
        return differing

    async def _distinct_keys(self, records: Sequence[bytes]) -> list[str] | None:
        """The keys of these records, as far as they are usable; None: some have none, or the same one."""
        keys: list[str] = []
        for some in _batched(records):
            found = probable_keys(some, self._feed.id_field)
            if found is None:
                return None
            keys += found
            await asyncio.sleep(0)
        return keys if len(set(keys)) == len(keys) else None

    async def _until_written(self, keys: list[str]) -> None:
        """Wait for the commits that hold one of these keys."""
        if not all(one.commit.snapshots.keys().isdisjoint(keys) for one in self._commits.unwritten):
            await self._commits.settle()

    def _note_published(self, commit: Commit, mode: RoundMode, changed: set[str] | None) -> None:
        keys = [key for key, one in commit.snapshots.items() if one.sequence > self._sequence]
        if changed is not None:
            changed.update(keys)
        if mode is RoundMode.DELTA:
            keys += [key for key, held in commit.held.items() if held is not None]  # which the listing may not show yet
            self._store.deltas.add(keys, changed=True)
        else:
            self._store.deltas.forget(keys)

    def _count_returned(self) -> None:
        """Count the records that the delta leaves at a version which it had shown before another one."""
        names = {f"?{version} {key}" for key, version in self._versions.returned()}
        if self._versions.is_full:
            names.add(f"?{self._versions.digest}")
        self.fragments += self._new_names(names)

    def _count_doubts(self, received: Iterable[Record | Rejected], known: Mapping[str, Snapshot]) -> None:
        def known_version(key: str) -> tuple[bool, str | None]:
            before = known.get(key)
            return (False, None) if before is None else (True, modified_of(before.raw))

        self.fragments += self._new_doubts(one.raw for one in self._versions.in_doubt(received, known_version))

    def _new_doubts(self, versions: Iterable[bytes]) -> int:
        """How many of these versions are in doubt, and were not in the deltas before, which a reading has followed."""
        return self._new_names({f"?{blake2b(self._form(raw), digest_size=16).hexdigest()}" for raw in versions})

    def _new_names(self, names: set[str]) -> int:
        self._doubted |= names
        return sum(not self._store.deltas.is_repeated(name, timedelta()) for name in names)

    def _form(self, raw: bytes) -> bytes:
        """The canonical form of a version without what is ignored; as received if it is unusable."""
        try:
            value, form = parse_received(raw)
        except ValueError:
            return raw
        return form if self._rules.strip is None else encode(self._rules.strip(value))

    def _members(self, raw: bytes) -> frozenset[int]:
        """Hashes of the members of a record, without what is ignored; of the whole if it is unusable."""
        try:
            value, _ = parse_received(raw)
        except ValueError:
            return frozenset([hash(raw)])
        members = value if self._rules.strip is None else self._rules.strip(value)
        return frozenset(hash((name, encode(one))) for name, one in members.items())

    def _note_shown(self, received: Iterable[Record | Rejected], mode: RoundMode) -> None:
        if mode is RoundMode.DELTA:
            self._versions.add(received)

    def _is_stored(self, commit: Commit, mode: RoundMode) -> bool:
        """Whether all records are known as they were read once this is committed; others are counted."""
        if mode is RoundMode.DELTA:
            # A part may have what the newer one lacks, and a record may have gone back while the delta was read.
            self.fragments += self._new_doubts(one.raw for one in commit.superseded)
        else:
            self.unsettled += len(commit.superseded) + commit.withheld
        passed_over = commit.superseded or commit.put_off or commit.withheld
        return not (commit.rejected or commit.held or commit.backwards or passed_over)

    async def _count_passed_over(
        self, records: Sequence[Record], known: Mapping[str, Snapshot], rules: PublishRules
    ) -> None:
        before = self.passed_over
        for place, one in enumerate(records, start=1):
            self.passed_over += _differs(one, known.get(one.key), rules)
            if not place % _AT_ONCE:
                await asyncio.sleep(0)
        if self.passed_over and not before:  # the round may end before its own end is committed
            await self.marks(self._marks_of_parts())

    async def _completed(
        self, records: Sequence[Record | Rejected], known: Mapping[str, Snapshot], rules: PublishRules
    ) -> tuple[list[Record | Rejected], PublishRules, Mapping[str, str | None]]:
        """The records of a page of parts, completed as far as they can be, and the marks to commit with them."""
        readable = await self._readable(known)
        completed, whole = await complete_records(records, readable, feed=self._feed, get=self._get)
        complete = whole | readable
        parts = (one for one in completed if isinstance(one, Record))
        # Nor is a part complete with the known version if another one is held back.
        fragments = self._new_doubts(one.raw for one in parts if one.key not in complete or one.key in self._held)
        self.fragments += fragments
        return completed, msgspec.structs.replace(rules, whole_keys=whole), self._marks_of_parts() if fragments else {}

    def _note_listed(self, keys: list[str], mode: RoundMode, seen: SeenKeysObserver | None) -> None:
        if seen is not None:
            seen.update(keys)
        if mode is RoundMode.DELTA:
            self._store.deltas.add(keys)

    def _rules_for(self, mode: RoundMode, path: str, *, puts_off: bool) -> PublishRules:
        is_baseline = mode is RoundMode.BASELINE
        holding = VersionPolicy(
            self._held,
            newest=self._feed.newest,
            begun=None if mode is RoundMode.DELTA else self._begun_ms - int(self._age().total_seconds() * 1000),
            now=self._store_ms(),
            apart=self._feed.second_look,
        )
        return msgspec.structs.replace(
            self._rules,
            partial=self._feed.partial and mode is RoundMode.DELTA,
            round_start=self._delta_start if mode is RoundMode.DELTA else self._rules.round_start,
            silent=self._feed.silent_baseline and is_baseline,
            again=self._frame(RoundMode.FULL, path) if is_baseline and self._knows_records else None,
            puts_off=puts_off,
            holding=holding,
        )

    async def _known(self, keys: list[str], seen: SeenKeysObserver | None) -> Mapping[str, Snapshot]:
        """The snapshots of a page's records.

        Where none were kept when the round began, only a record that was met in it can have one: each commit is refused
        if anything else was written since, or if the store has gone back.
        """
        if self._met is not None:
            keys = self._met.meet(keys)
        await self._until_written(keys)
        known = await self._store.known(keys)
        if self._may_know and await self._take_over(keys, known, seen):
            return await self._store.known(keys)
        return known

    async def _take_over(
        self, keys: Sequence[str], known: Mapping[str, Snapshot], seen: SeenKeysObserver | None
    ) -> bool:
        """Commit the snapshots of records whose id has changed its JSON type to their new keys; whether there are any.

        Such a record is the one that was known: its subject is the same, so its revisions go on. The old key keeps a
        tombstone. An id that is listed in both types is two records.
        """
        packed = isinstance(known, PackedSnapshots)  # none of which is a tombstone, but in rare cases
        free = [key for key in keys if key not in known or (not packed and known[key].removed)]
        listed = frozenset(keys) if free else frozenset()
        twins = {twin: key for key in free if (twin := twin_of(key)) and twin not in listed}
        if twins:
            await self._commits.settle()
        found = await self._store.known(list(twins)) if twins else {}
        has_moved = False
        for some in batches((twin, checked(before)) for twin, before in found.items()):
            moved: dict[str, Snapshot] = {}
            for twin, before in some.items():
                if before.removed or before.unreadable or (seen is not None and twin in seen):
                    continue
                own = known.get(twins[twin])
                revision = max(before.revision, own.revision if own else 0)
                moved[twins[twin]] = msgspec.structs.replace(before, revision=revision, missing=False)
                moved[twin] = msgspec.structs.replace(before, raw=b"", removed=True, missing=False)
            if moved:
                tombstones = len(moved) // 2 - sum(key in known for key in moved)
                self._taken_over += 1
                self.lists_known = False  # another listing may hold the old key
                marks = {TAKEN_OVER: str(self._taken_over)}
                commit = Commit(self._generation, self._sequence, moved, marks=marks)
                await self._commit(self._with_tombstones(commit, tombstones))
                if self._written is not None:
                    self._written.update(moved)
                has_moved = True
        return has_moved

    async def _mark_seen(self, rejected: Sequence[Rejected], seen: SeenKeysObserver | None, mode: RoundMode) -> None:
        """Count unusable records as listed, as far as their keys can be read."""
        if not rejected:
            return
        keys: list[str] = []
        for some in slices(rejected):
            for one in some:
                found = identities(one.raw, self._feed.id_field)
                if found is None:
                    self.unidentified += 1
                    is_in_doubt = not is_single(one.raw)
                    self.jumbled += (
                        self._new_doubts([one.raw]) if is_in_doubt and mode is RoundMode.DELTA else is_in_doubt
                    )
                else:
                    keys += found
            await asyncio.sleep(0)
        if seen is None:
            return
        seen.update(keys)
        for asked in _batched(keys):
            known = await self._store.known(list(asked))
            for missing in batches((key, one) for key, one in known.items() if one.missing):
                back = {key: msgspec.structs.replace(one, missing=False) for key, one in missing.items()}
                await self._commit(Commit(self._generation, self._sequence, back))

    async def _readable(self, known: Mapping[str, Snapshot]) -> frozenset[str]:
        """The keys of records that a part can be merged with: those that are there and can be read."""
        found, size = set[str](), 0
        for key in known:
            snapshot = known[key]
            if not (snapshot.removed or checked(snapshot).unreadable):
                found.add(key)
            size += len(snapshot.raw)
            if size >= SLICE_BYTES:
                size = 0
                await asyncio.sleep(0)
        return frozenset(found)

    async def remove(self, gone: Mapping[str, Snapshot], *, mode: RoundMode) -> None:
        """Commit the removal of these records."""
        if not gone:
            return
        last = {key: self._feed.last_seen(key, snapshot) for key, snapshot in gone.items()}
        path_of = self._feed.resource.listing_path
        planned = plan_removals(
            {key: (record.subject, gone[key]) for key, record in last.items()},
            {key: self._frame(mode, path_of(record.qualification)) for key, record in last.items()},
            generation=self._generation,
            sequence=self._sequence,
            recorded=rfc3339(self._clock.now()),
            keeps_content=self._store.keeps_removed,
        )
        async with self.commits_in_order():
            await self._put(self._with_tombstones(planned[0], len(gone)), planned[1])
        self._sequence = planned[0].next_sequence

    def _with_tombstones(self, commit: Commit, more: int) -> Commit:
        """The commit with the new number of tombstones."""
        if not more:
            return commit
        self._tombstones = max(self._tombstones + more, 0)
        return msgspec.structs.replace(commit, marks={**commit.marks, TOMBSTONES: str(self._tombstones)})

    async def mark_missing(self, missing: Mapping[str, Snapshot]) -> None:
        """Mark records as missing after the first reading that did not list them. No event.

        A rotation ends with it: a round that continued it would take the same readings for the second ones.
        """
        if missing:
            marked = {key: msgspec.structs.replace(snapshot, missing=True) for key, snapshot in missing.items()}
            marks = {MISSING_AT: str(self._store_ms()), ROTATION: None}
            await self._commit(Commit(self._generation, self._sequence, marked, marks=marks))

    async def is_outdated(self, listing: SubstreamSnapshot) -> bool:
        """Whether an event of one of its records was published since it was read: another listing has shown it."""
        if listing.sequence >= self._round_start and self._written is not None:
            return not self._written.isdisjoint(listing.keys)
        known = await self._store.known(list(listing.keys))
        return any(one.sequence > listing.sequence for one in known.values())

    def keep_listing(self, name: str, listing: SubstreamSnapshot) -> None:
        """Let the next commit write the snapshot of a listing; each round ends with a commit."""
        self._listings[name] = listing

    async def commit_many_listings(self) -> None:
        """Write the snapshots of listings that wait for a commit, if they are many."""
        if len(self._listings) >= _LISTINGS_TOGETHER:
            await self._commit(Commit(self._generation, self._sequence))

    async def marks(self, marks: Mapping[str, str | None], *, page_digests: bytes | None = None) -> None:
        """Commit marks of the feed's state, and the digests of the pages of this reading, if there are any."""
        marks = {**marks, **self._token_marks(marks)}
        await self._commit(Commit(self._generation, self._sequence, marks=marks, page_digests=page_digests))

    def _token_marks(self, marks: Mapping[str, str | None]) -> Mapping[str, str | None]:
        """Up to which event all deltas have been read to their ends, if that has changed with these marks."""
        token = marks.get(DELTA_TOKEN, self._token)
        is_broken_off = self._open_token is not None and token == self._open_token
        if is_broken_off or not (self._has_ended or DELTA_TOKEN in marks):
            return {}
        before = self._token, self._token_sequence
        self._token, self._has_ended = token, False
        self._token_sequence = None if token is None else self._sequence
        if (token, self._token_sequence) == before:
            return {}
        return {TOKEN_SEQUENCE: None if token is None else token_mark(self._sequence, token)}

    def _store_ms(self) -> int:
        """The server's clock: its time at the lease plus the time since."""
        return int((self._clock.monotonic() - self._began) * 1000)

    def _frame(self, mode: RoundMode, path: str) -> EventFrame:
        return event_frame(self._feed, generation=self._generation, mode=mode, path=path, extensions=self._carried)

    @asynccontextmanager
    async def commits_in_order(self) -> AsyncGenerator[None]:
        """Go on to the next page while commits are written; when the block ends, all are.

        If it ends with an error of the API, they are written as well. If it is cancelled, or the store has failed,
        those that wait are dropped. Blocks may be within each other.

        Raises:
            StoreError: a commit was not written.
        """
        self._depth += 1
        try:
            yield
        except SourceError:
            await self._commits.settle()
            raise
        except BaseException:
            await self._commits.stop()
            raise
        else:
            await self._commits.settle()
        finally:
            self._depth -= 1

    async def _put(self, commit: Commit, tally: RoundCounts) -> None:
        if self._commits.unwritten:  # the next one is sent if it is answered: the store need not wait for this one
            await give_way()
        if self._first_marks:
            commit = msgspec.structs.replace(commit, marks={**commit.marks, **self._first_marks})
            self._first_marks = {}
        self._listings |= self._with_records()
        commit = self._with_listings(commit)
        await self._commits.put(_PlannedCommit(commit, tally, self._store.pack(commit)), self._write)
        if self._written is not None:
            self._written.update(commit.snapshots)
            self._written.update(commit.held)
            if len(self._written) > _MOST_WRITTEN:
                self._written = None

    def _with_listings(self, commit: Commit) -> Commit:
        """The commit with the listings that wait for it."""
        listings, self._listings = self._listings, {}
        return msgspec.structs.replace(commit, listings=listings) if listings else commit

    async def _write(self, planned: _PlannedCommit) -> None:
        await self._store.write(planned.commit, planned.packed)
        self.tally += planned.tally
        self.backwards += planned.commit.backwards

    async def _commit(self, commit: Commit) -> None:
        """Write a commit after all that were planned before."""
        await self._commits.settle()
        await self._store.commit(self._with_listings(commit))
        if at := commit.marks.get(RECHECK_AT):
            self.recheck_at = datetime.fromisoformat(at)


def _batched(several: Sequence[T], size: int = _AT_ONCE) -> Iterator[Sequence[T]]:
    """Parts of this size; of the default one each takes about a millisecond, so that other tasks need not wait."""
    for start in range(0, len(several), size):
        yield several[start : start + size]


def _with_snapshots(
    records: Sequence[Record | Rejected], known: Mapping[str, Snapshot]
) -> Iterator[tuple[Sequence[Record | Rejected], Mapping[str, Snapshot]]]:
    """Slices of the records of a page, each with the snapshots of its keys; the page has each key once."""
    for part in slices(records):
        if not isinstance(known, PackedSnapshots):
            yield part, known
            continue
        start = size = 0
        before: dict[str, Snapshot] = {}
        for end, record in enumerate(part, start=1):
            if isinstance(record, Record) and record.key in known:
                before[record.key] = snapshot = known[record.key]
                size += len(snapshot.raw)
            if size >= _BATCH_BYTES or end == len(part):
                yield part[start:end], before
                start, size, before = end, 0, {}


def batches(snapshots: Iterable[tuple[str, Snapshot]]) -> Iterator[dict[str, Snapshot]]:
    """Parts that are small enough for one commit."""
    some: dict[str, Snapshot] = {}
    size = 0
    for key, snapshot in snapshots:
        some[key] = snapshot
        size += len(snapshot.raw)
        if len(some) == SLICE_RECORDS or size >= _BATCH_BYTES:
            yield some
            some, size = {}, 0
    if some:
        yield some


def event_frame(
    feed: Feed, *, generation: str, mode: RoundMode, path: str, extensions: Mapping[str, str] = MappingProxyType({})
) -> EventFrame:
    """The attributes that all events of one listing share."""
    return EventFrame(
        feed=feed.id,
        generation=generation,
        source=feed.event_source + path,
        type_stem=f"{feed.type_prefix}.{feed.resource.type_name}",
        cause=Cause(mode),
        extensions=extensions,
    )


def _differs(record: Record, snapshot: Snapshot | None, rules: PublishRules) -> bool:
    """Whether a record is not as it is known."""
    try:
        return compare(record, snapshot, rules.strip, rules.shape) is not None
    except ValueError:  # it is unusable: the next reading that compares it says so
        return True


def token_mark(sequence: int, token: str) -> str:
    """The mark of a token: up to which event all deltas before it have been read to their ends."""
    return f"{sequence} {blake2b(token.encode(), digest_size=8).hexdigest()}"


def sequence_of_token(mark: str | None, token: str | None) -> int | None:
    """The number in a mark; None: it is not of this token, for another version has taken that."""
    number = (mark or "").partition(" ")[0]
    if token is None or not number.isdecimal() or mark != token_mark(int(number), token):
        return None
    return int(number)


def _is_back(key: str, known: Mapping[str, Snapshot]) -> bool:
    before = known.get(key)
    return before is not None and before.removed


_LAST_WAIT: Final = 4.0  # seconds; a little more than a commit takes for itself
_MOST_COMMITS: Final = 3  # one is written and two wait; with more, no reading was faster


class CommitQueue(Generic[T]):
    """Writes commits one after the other while the next ones are planned, and none after one that failed.

    One task writes them: the answer to one is followed by the next without another turn of the event loop, which would
    wait until a slice is planned.

    Attributes:
        unwritten: those that were put and are not written yet, in their order.
    """

    def __init__(self) -> None:
        """Begin without any."""
        self.unwritten: deque[T] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._waiter: asyncio.Future[None] | None = None  # for the next one to be written
        self._written: list[T] = []  # freed when another one is put: the store would wait meanwhile
        self._is_stopped = False

    async def put(self, planned: T, write: Callable[[T], Awaitable[None]]) -> None:
        """Write this one after those before; waits while too many are not written.

        Args:
            planned: the commit.
            write: writes one; the same for all. It is not kept: its owner holds this queue, and both would be garbage
                that only the collector finds.

        Raises:
            StoreError: one of those before was not written.
        """
        if self._is_stopped:
            raise StoreError("nothing is written any more, for an earlier commit was not")
        while self._writing is not None and len(self.unwritten) >= _MOST_COMMITS:
            await self._one_more(self._writing)
        self.unwritten.append(planned)
        self._written.clear()
        if self._writing is not None and self._writing.done():
            self._writing.result()  # nothing is written after one that failed
            self._writing = None
        self._writing = self._writing or asyncio.create_task(self._write_all(write))

    async def settle(self) -> None:
        """Wait until all are written. Cancelled, it stops.

        Raises:
            StoreError: one was not.
        """
        try:
            while self._writing is not None and self.unwritten:
                await self._one_more(self._writing)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Drop those that wait; the one on its way is finished. Nothing can be written any more."""
        self._is_stopped = True
        if self._writing is not None:
            await finished(self._writing, within=_LAST_WAIT)
            if not self._writing.cancelled():
                self._writing.exception()  # it was raised already
        self.unwritten.clear()

    async def _one_more(self, writing: asyncio.Task[None]) -> None:
        """Wait until one more is written."""
        self._waiter = asyncio.get_running_loop().create_future()
        await asyncio.wait({writing, self._waiter}, return_when=asyncio.FIRST_COMPLETED)
        if writing.done():
            writing.result()

    async def _write_all(self, write: Callable[[T], Awaitable[None]]) -> None:
        while self.unwritten and not self._is_stopped:
            await write(self.unwritten[0])
            self._written.append(self.unwritten.popleft())
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)


_DETAILS_AT_ONCE: Final = 32
GONE: Final = frozenset({404, 410})
"""Answers that say that there is no such record, or no such listing of a qualification."""


async def complete_records(
    records: Sequence[Record | Rejected], known: Container[str], *, feed: Feed, get: Get
) -> tuple[list[Record | Rejected], frozenset[str]]:
    """Replace the parts of unknown records by the whole records, and return the keys of these.

    Args:
        records: of a page.
        known: the keys of records with a snapshot that parts can be merged with.
        feed: the feed.
        get: one exchange with the API.

    Raises:
        SourceError: one of them could not be requested.
    """
    whole, completed = list(records), set[str]()
    if feed.resource.detail_path is None:
        return whole, frozenset()
    places = [place for place, record in enumerate(records) if isinstance(record, Record) and record.key not in known]
    for start in range(0, len(places), _DETAILS_AT_ONCE):
        asked = places[start : start + _DETAILS_AT_ONCE]
        parts = [record for record in (records[place] for place in asked) if isinstance(record, Record)]
        answers = await asyncio.gather(*(_whole(part, feed, get) for part in parts), return_exceptions=True)
        for place, part, answer in zip(asked, parts, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            if answer is not part:
                completed.add(part.key)
            whole[place] = answer
    return whole, frozenset(completed)


async def _whole(part: Record, feed: Feed, get: Get) -> Record:
    path = feed.resource.record_path(part.subject)
    if path is None:
        return part
    try:
        body = await get(path, ())
    except SourceRefused as refused:
        if refused.status in GONE:
            return part
        raise
    found = single_record(body, feed)
    if found is None or found.key != part.key:
        return part
    # Where no time decides, the part counts: if it is older, a later delta brings the record again.
    return found if is_older(part.modified, found.modified) else _over_older(part, found)


def single_record(body: bytes | None, feed: Feed) -> Record | None:
    """The record that the single-record endpoint has answered with; None: the answer is no record."""
    found = record_reader(feed.id_field)((body or b"").removeprefix(BOM_UTF8))
    return found if isinstance(found, Record) else None


def _over_older(part: Record, whole: Record) -> Record:
    """The part over the whole record, which may come from a backend that lags; alone if the two cannot be merged.

    A record that the part changes nothing of stays as it was received.
    """
    try:
        parse_received(whole.raw)
        both = merged(part, whole.raw)
    except ValueError:
        return part
    return whole if canonical(both.raw) == canonical(whole.raw) else both
