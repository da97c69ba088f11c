"""One feed as a member of a consumer group reads it: its lease, its batch, and what is not acknowledged yet.

An exclusive reader goes through three phases, and back to the first whenever something is not certain::

    STANDBY ──▶ has the lease ──▶ CLAIMING: all that is not acknowledged, oldest first ──▶ READING: what is new
       ▲                                                                                      │
       └── lost the lease, an error, a cancelled read, a store that went back ◀───────────────┘

A shared reader has no lease. It first reads what it did not acknowledge itself, then new entries, and claims from time
to time what others have left.

**Invariants**

- While an answer of the store is awaited the phase is STANDBY, so a reader that fails or is cancelled asks again for
  everything that is not acknowledged. What this process has at hand is recognized and not handed out twice.
- Nothing of a batch is handed out after the lease may have expired by this process's clock, which is before it expires
  at the server.
- Exclusive: entries are handed out and acknowledged in the order of the stream, so per record no revision falls.
- Each event that is missing in the sequence is reported once it is known to be missing, before the next event. So
  nothing is acknowledged while the reader asks the store what is not acknowledged.
- A page of a bootstrap is handed out directly after the last entry that it contains. It is fetched by a task of its
  own, one at a time, which is over when the reader is closed. A lost lease cancels it, but not the caller: that stands
  by.
- A full reader hands out nothing until something is acknowledged, also of a page that has more records than permitted.
- A bootstrap is of one generation of the feed. After a reset, whether it was complete or not, it begins again; and so
  does one during which the store went back.
- An event that comes again, from another entry, is a repeat only if this process has handled nothing later of its
  record in this tenure: after a store went back, the source may have the earlier version again.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import sys
import time
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum, auto
from typing import Final, Literal, NamedTuple, cast

from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from poller.client.gaps import Gap, number_of, order
from poller.client.group_store import (
    GroupMissing,
    GroupState,
    GroupStore,
    LeaseHolder,
    LeaseLost,
    ReadBehind,
    StreamEntry,
)
from poller.client.record_pages import (
    PageRecord,
    PagesExpired,
    PagesUnavailable,
    RecordPages,
    ResetWatch,
    SnapshotPage,
)

LINGER_SECONDS: Final = 0.01
"""For how long an acknowledgement may wait for others, where the loop's body is fast."""

WATCH_LEASES: Final = 3
"""How many terms of a lease are between two questions whether the feed was reset."""

_RECENT: Final = 4096  # ids of events that were handled here; a store that went back gives some of them again
_FIRST_BATCH: Final = 16  # entries, of unknown size
_BATCH_BYTES: Final = 4 * 1024 * 1024
_STANDBY_SECONDS: Final = 1.0
_AGAIN_SECONDS: Final = 0.1
_FIRST: Final = "0-0"

_log = logging.getLogger("poller.client")
_format: Final = JSONFormat()


def clock() -> float:
    """Seconds that go forward while the machine sleeps, too, where the system has such a clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


class Turn(NamedTuple):
    """The end of a page: the link of the next one, empty after the last, and the feed's generation."""

    following: str
    generation: str


@dataclass(slots=True, eq=False)
class HandedEvent:
    """An event of a batch, until it is acknowledged.

    Attributes:
        event: as the loop's body gets it.
        reader: where it comes from.
        tenure: of the reader; one of an earlier tenure is another member's now.
        entry: its id in the stream; empty: a record of a bootstrap.
        sequence: of the event.
        record: of a bootstrap.
        is_repeat: whether this process has handled it before.
        turns_to: what follows this last event of a page; None: it is not the last of one.
    """

    event: CloudEvent
    reader: FeedReader
    tenure: int
    entry: str = ""
    sequence: int | None = None
    record: PageRecord | None = None
    is_repeat: bool = False
    turns_to: Turn | None = None

    @property
    def key(self) -> str:
        """What tells it from the others of its reader."""
        return self.entry or cast("PageRecord", self.record).key


class Phase(Enum):
    """Where a reader stands; see the module."""

    STANDBY = auto()
    CLAIMING = auto()
    READING = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderSettings:
    """What all readers of a consumer have in common.

    Attributes:
        lease: how long a lease lasts unless it is renewed; of a shared feed: how long an entry may rest before others
            claim it.
        batch: entries of a batch, at most.
        most_unsettled: events that may be handed out and not acknowledged.
        start: the id after which a new group begins.
    """

    lease: timedelta
    batch: int
    most_unsettled: int
    start: str


@dataclass(eq=False)
class FeedReader(ABC):
    """A reader; see the module for the two kinds.

    Attributes:
        feed: ``SOURCE/NAME``.
        batch: what was read and not handed out, in order; and gaps.
        unsettled: what was handed out and not acknowledged, in order.
        done: of these, what was handled.
        due: when it has something to do, even if nothing new comes.
        tail: the last id of the stream when it had nothing new; empty: it does not wait for new entries.
    """

    feed: str
    store: GroupStore
    settings: ReaderSettings
    batch: deque[HandedEvent | Gap] = field(default_factory=deque)
    unsettled: dict[str, HandedEvent] = field(default_factory=dict)
    done: deque[HandedEvent] = field(default_factory=deque)
    due: float = 0.0
    tail: str = ""
    tenure: int = 0
    phase: Phase = Phase.STANDBY
    _held_until: float = 0.0
    _settled_at: float = 0.0
    _most: int = _FIRST_BATCH
    _recent: OrderedDict[str, str] = field(default_factory=OrderedDict)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    # What the consumer does with it.

    async def fill(self) -> None:
        """Fill the batch, if there is something now."""
        self.tail = ""
        if self.is_full:
            await self.settle()
        while not self.batch and not self.is_full:
            try:
                if not await self._step():
                    return
            except LeaseLost:
                self.lose()
            except (GroupMissing, ReadBehind):
                self.due = clock() + _AGAIN_SECONDS
                return

    @property
    def is_full(self) -> bool:
        """Whether it must wait for acknowledgements."""
        return len(self.unsettled) >= self.settings.most_unsettled

    @property
    def is_held(self) -> bool:
        """Whether no other member can have what is in the batch."""
        return clock() < self._held_until

    @property
    def is_settling_due(self) -> bool:
        """Whether what was handled should be acknowledged before more is handed out."""
        return bool(self.done) and (
            len(self.done) >= self.settings.batch or clock() - self._settled_at >= LINGER_SECONDS
        )

    def hand_out(self) -> HandedEvent:
        """Take the next event out of the batch."""
        handed = cast("HandedEvent", self.batch.popleft())
        handed.is_repeat = self._is_repeat(handed)
        self.unsettled[handed.key] = handed
        return handed

    def finish(self, handed: HandedEvent) -> None:
        """Note that an event was handled; :meth:`settle` acknowledges it."""
        if handed.tenure == self.tenure:
            self.done.append(handed)
            _remember(self._recent, handed.event.get_id(), handed.entry)

    def finish_up_to(self, handed: HandedEvent) -> bool:
        """Note that an event was handled, with what its acknowledgement includes. False: it is another member's now."""
        if handed.tenure != self.tenure:
            return False
        ready = set(map(id, self.done))
        for one in self._included(handed):
            if id(one) not in ready:
                self.finish(one)
        return True

    async def settle(self) -> bool:
        """Acknowledge what was handled. False: it is another member's now."""
        async with self._lock:
            if not self.done:
                return True
            done, tenure = list(self.done), self.tenure
            try:
                await self._acknowledge(done)
            except LeaseLost:
                if tenure == self.tenure:
                    _log.warning(
                        "%s: the lease was lost; %d events that were handled come again, at another member",
                        self.feed,
                        len(done),
                    )
                    self.lose()
                return False
            self._settled_at = clock()
            if tenure != self.tenure:
                return True
            for one in done:
                self.done.popleft()
                self.unsettled.pop(one.key, None)
            return True

    def doubt(self) -> None:
        """Ask the store again for everything that is not acknowledged."""
        self.batch.clear()
        self.phase = Phase.STANDBY
        self.due = 0.0

    def lose(self) -> None:
        """Note that another member may have all that was read."""
        self.tenure += 1
        self.doubt()
        self.due = clock() + _AGAIN_SECONDS
        self._held_until = 0.0
        self.unsettled.clear()
        self.done.clear()

    @abstractmethod
    async def renew(self) -> None:
        """Keep what was read from other members for another term."""

    async def mark_reported(self, gap: Gap, *, lasting: bool) -> None:  # noqa: B027 -- only one kind has something to do
        """Note that a gap was reported; ``lasting``: also for after a restart."""

    async def release(self) -> None:  # noqa: B027 -- only one kind has something to do
        """Let another member go on."""

    async def aclose(self) -> None:  # noqa: B027 -- only one kind has something to do
        """End what goes on beside."""

    # What the two kinds do differently.

    @abstractmethod
    async def _step(self) -> bool:
        """Do the next thing; False: there is nothing more to do now."""

    @abstractmethod
    def _included(self, handed: HandedEvent) -> Iterable[HandedEvent]:
        """The events that an acknowledgement of this one includes."""

    @abstractmethod
    async def _acknowledge(self, done: Sequence[HandedEvent]) -> None:
        """Write that these were handled."""

    # What they share.

    def _is_repeat(self, handed: HandedEvent) -> bool:
        """Whether this process has handled it before; see the module."""
        return bool(handed.entry) and self._recent.get(handed.event.get_id()) == handed.entry

    def _room(self) -> int:
        """How many entries to read: fewer if those before were large."""
        room = self.settings.most_unsettled - len(self.unsettled)
        return max(1, min(self._most, self.settings.batch, room))

    def _measure(self, entries: Sequence[StreamEntry]) -> None:
        if entries:
            mean = sum(len(event or b"") for _, event in entries) // len(entries)
            self._most = max(1, min(self.settings.batch, 4 * self._most, _BATCH_BYTES // max(mean, 1)))

    def _handed(self, entry: str, content: bytes) -> HandedEvent | None:
        """An entry as an event; None: it holds none."""
        try:
            event = cast("CloudEvent", _format.read(CloudEvent, content))
        except Exception as error:  # noqa: BLE001 -- another program's entry would stop the group for ever
            what = type(error).__name__  # its text may hold content
            _log.error("%s: entry %s holds no CloudEvent (%s) and is passed over", self.feed, entry, what)
            return None
        return HandedEvent(event, self, self.tenure, entry, number_of(event.get_extension("sequence")))


@dataclass(eq=False)
class ExclusiveReader(FeedReader):
    """A reader that has the feed alone, by a lease, and keeps the order."""

    pages: RecordPages | None = None
    """Where the present state comes from, if the group is to begin with it."""
    watch: ResetWatch | None = None
    """Tells whether the feed was reset after the bootstrap."""
    _known: str = ""
    _place: str = ""
    _cursor: str = _FIRST
    _sequence: int | None = None
    _handled: int | None = None
    _bootstrap: bool = False
    _link: str = ""
    _generation: str = ""
    _run_id: str = ""
    _latest: OrderedDict[str, str] = field(default_factory=OrderedDict)
    _page: SnapshotPage | None = None
    _fetching: asyncio.Task[SnapshotPage] | None = None
    _fetched_link: str = ""
    _later: list[HandedEvent | Gap] = field(default_factory=list)
    _holder: str = ""
    _reported: str = ""
    _reported_to: int | None = None

    async def renew(self) -> None:
        """Keep the lease."""
        if not self._held_until:
            return
        before, tenure = clock(), self.tenure
        if await self.store.renew():
            if tenure == self.tenure:
                self._held_until = max(self._held_until, before + self.settings.lease.total_seconds())
        elif tenure == self.tenure:
            _log.warning("%s: the lease was lost; another member may read now", self.feed)
            self.lose()

    def finish(self, handed: HandedEvent) -> None:
        """Note that an event was handled, the latest one of its record."""
        super().finish(handed)
        if handed.entry and handed.sequence is not None:
            self._handled = handed.sequence
        if handed.tenure == self.tenure:
            _remember(self._latest, _record_of(handed), handed.event.get_id())

    async def mark_reported(self, gap: Gap, *, lasting: bool) -> None:
        """Note that what is before the gap's end is accounted for."""
        self._reported_to = gap.before
        if lasting and gap.before is not None:
            await self.store.acknowledge((), sequence=gap.before - 1)

    def lose(self) -> None:
        """Note that another member may have all that was read, and report what is missing."""
        super().lose()
        self._latest.clear()
        self._reported_to = None
        self._drop_page()

    async def release(self) -> None:
        """Release the lease."""
        if self._held_until:
            await self.store.release()

    async def aclose(self) -> None:
        """Fetch no page any more, and close the connections to the daemon."""
        fetching = self._fetching
        self._drop_page()
        if fetching is not None:
            await asyncio.wait([fetching])
        if self.watch is not None:
            await self.watch.aclose()
        if self.pages is not None:
            await self.pages.aclose()

    async def _step(self) -> bool:
        phase, self.phase = self.phase, Phase.STANDBY
        if phase is Phase.STANDBY:
            return await self._acquire()
        self.due = 0.0
        if phase is Phase.CLAIMING:
            return await self._claim()
        return await self._read()

    def _go_on(self, phase: Phase) -> None:
        """The answer is there: nothing need be asked for again."""
        is_watching = self.watch is not None and not self._bootstrap
        self.phase, self.due = phase, self.watch.due(clock()) if self.watch and is_watching else math.inf

    async def _acquire(self) -> bool:
        if clock() < self.due:
            return False
        before = clock()
        start = "" if self.pages is not None else self.settings.start
        async with self._lock:
            found = await self.store.acquire(start=start, known=self._place)
            if isinstance(found, LeaseHolder):
                self._stand_by(found)
                return False
            if not found.was_held:
                self._forget_others()
            found = await self._restarted(found)
            self.due, self._held_until = 0.0, before + self.settings.lease.total_seconds()
            self._enter(found)
            if self._holder:
                _log.info("%s: this member reads now", self.feed)
                self._holder = ""
        if not found.exists and not await self._create_group():
            return False
        self._go_on(Phase.CLAIMING)
        return True

    def _forget_others(self) -> None:
        """Note that another member may have had the feed."""
        self.lose()
        if self.watch is not None:
            self.watch.restart(0.0)

    async def _restarted(self, found: GroupState) -> GroupState:
        """The state, at the first page if the store went back during a bootstrap: later versions were handled."""
        if not (found.bootstrap == "running" and found.read and self._known) or order(found.read) >= order(self._known):
            return found
        self.lose()
        _log.info("%s: the store went back; the records are read from the first page again", self.feed)
        await self.store.note_records({}, state={"page": ""}, begins_page=True)
        return replace(found, page="")

    def _stand_by(self, holder: LeaseHolder) -> None:
        if self._held_until:
            self.lose()
        if self._holder != holder.name:
            if holder.name == self.store.member:
                _log.info(
                    "%s: an earlier %s has the lease; this one stands by until it expires", self.feed, holder.name
                )
            else:
                _log.info("%s: %s reads; this member stands by", self.feed, holder.name)
            self._holder = holder.name
        wait = min(_STANDBY_SECONDS, self.settings.lease.total_seconds() / 3, holder.left.total_seconds() + 0.01)
        self.due = clock() + wait * random.uniform(0.5, 1)  # noqa: S311 -- so that members do not ask in step

    def _enter(self, state: GroupState) -> None:
        self._known, self._cursor = state.read, _FIRST
        # The store may have lost this together with events that were not read; this process still knows it.
        self._sequence = self._handled if state.sequence is None else state.sequence
        self._page, self._later = None, []
        self._bootstrap = self.pages is not None and state.bootstrap != "done"
        self._link, self._generation, self._run_id = state.page, state.generation, state.run_id

    async def _create_group(self) -> bool:
        """Create the group as of the first page of a bootstrap. False: that has to wait."""
        page = await self._fetch("")
        if page is None:
            return False
        state = await self.store.acquire(start=page.entry, known=self._place)
        if isinstance(state, LeaseHolder):
            raise LeaseLost
        begins = {"bootstrap": "running", "page": "", "sequence": str(page.sequence)}
        await self.store.note_records({}, state=begins, begins_page=True)
        self._enter(state)
        self._sequence, self._page, self._link = page.sequence, page, ""
        return True

    async def _claim(self) -> bool:
        async with self._lock:
            found = await self.store.claim(begin=self._cursor, idle=timedelta(), most=self._room())
            if found.gone:
                await self.store.acknowledge(found.gone)
            self._measure(found.entries)
            items = await self._admitted(found.entries, found.gone)
        self._cursor = found.following
        self.batch.extend(items)
        self._go_on(Phase.READING if self._cursor == _FIRST else Phase.CLAIMING)
        return True

    async def _read(self) -> bool:
        if self._later:
            self.batch.extend(self._later)
            self._later = []
            self._go_on(Phase.READING)
            return True
        await self._follow_reset()
        if self._bootstrap and self._page is None:
            self._page = await self._fetch(self._link)
            if self._page is None:
                return False
        found = await self.store.read(most=self._room(), known=self._known)
        self._measure(found.entries)
        items = await self._admitted(found.entries, ())
        if found.entries:
            self._known = found.entries[-1][0]
        page = self._page
        is_void = page is not None and order(page.entry) > order(found.last)  # the store went back since it was read
        if is_void:
            self._page = None
            self._drop_page()
        elif page is not None and (not found.entries or order(self._known) >= order(page.entry)):
            items = await self._spliced(items, page)
        self.batch.extend(items)
        self._go_on(Phase.READING)
        if is_void:
            self.due = clock() + _AGAIN_SECONDS
        elif page is None:
            self.tail = "" if self.batch else found.last
        return bool(self.batch) or not (is_void or self.tail)

    async def _admitted(self, entries: Sequence[StreamEntry], gone: Sequence[str]) -> list[HandedEvent | Gap]:
        """Entries as events, with the gaps between them; what this process has at hand is left out."""
        contents = dict(entries) | dict.fromkeys(gone)
        items, lost = list[HandedEvent | Gap](), list[str]()
        for entry in sorted(contents, key=order) if gone else contents:
            content = contents[entry]
            if content is None:
                lost.append(entry)
                continue
            handed = self._handed(entry, content)
            items += await self._gaps(entry, None if handed is None else handed.sequence, lost)
            lost = []
            if handed is None:
                await self.store.acknowledge([entry])
            elif entry not in self.unsettled:
                items.append(handed)
        return items + await self._gaps("", None, lost)

    async def _gaps(self, entry: str, sequence: int | None, lost: Sequence[str]) -> list[Gap]:
        """The gap before an entry, if there is one. ``lost``: entries before it whose content is gone."""
        after, count = self._sequence, len(lost)
        if sequence is None:
            self._sequence = None if after is None else after + count + bool(entry)
            missing, before = count, None if after is None else after + count + 1
        else:
            self._sequence = sequence
            missing, before = count if after is None else max(sequence - after - 1, 0), sequence
        if not missing or (before is not None and before == self._reported_to):
            return []
        if sequence is None or after is None:
            erased = await self.store.erased.among(lost)
        else:
            erased = await self.store.erased.between(after, sequence)
        first = await self.store.first_entry()
        reason: Literal["trimmed", "deleted"] = "deleted"
        if entry and order(entry) <= order(first or entry):
            reason = "trimmed"
        return [Gap(self.feed, after=after, before=before, missing=missing, reason=reason, erased=erased)]

    # The bootstrap.

    async def _follow_reset(self) -> None:
        """Begin a complete bootstrap again if the feed was reset since."""
        found = "" if self.watch is None or self._bootstrap else self.watch.poll(clock())
        if not found or found == self._generation:
            return
        is_other, state = bool(self._generation), {"generation": found}
        if is_other:
            _log.info("%s: the feed was reset; its records are read again", self.feed)
            state |= {"bootstrap": "running", "page": ""}
        await self.store.note_records({}, state=state, begins_page=True)
        self._bootstrap, self._link, self._generation = is_other, "", found

    async def _fetch(self, link: str) -> SnapshotPage | None:
        """A page; None: it is to be asked for later."""
        try:
            page = await self._fetched(link)
            if self._known and order(page.entry) < order(self._known):  # more was read while nothing waited for it
                self._drop_page()
                page = await self._fetched(link)
            await self._match(page, link)
        except PagesExpired:
            _log.info("%s: the records are read from the first page again", self.feed)
            await self.store.note_records({}, state={"page": ""}, begins_page=True)
            self._link, self.due = "", clock() + _AGAIN_SECONDS
            return None
        except PagesUnavailable as error:
            if self._reported != str(error):
                _log.warning("%s: the records cannot be read yet: %s", self.feed, error)
                self._reported = str(error)
            self.due = clock() + error.wait
            return None
        return page

    async def _match(self, page: SnapshotPage, link: str) -> None:
        """Note what the first page is of; what was noted of it under another generation or server process is void.

        Raises:
            PagesExpired: the pages before were of another generation.
        """
        if link:
            if page.generation != self._generation:
                raise PagesExpired
            return
        if (page.generation, page.run_id) == (self._generation, self._run_id):
            return
        state = {"generation": page.generation, "run_id": page.run_id, "page": ""}
        await self.store.note_records({}, state=state, begins_page=True)
        self._generation, self._run_id = page.generation, page.run_id

    async def _fetched(self, link: str) -> SnapshotPage:
        """The page of a link, by a task of its own, which goes on where this one is cancelled.

        Raises:
            LeaseLost: meanwhile; the page is void, for another member may have read on.
        """
        if self._fetching is None or self._fetched_link != link:
            self._drop_page()
            pages = cast("RecordPages", self.pages)
            self._fetching = asyncio.create_task(pages.page(link or pages.first), name=f"a page of {self.feed}")
            self._fetching.add_done_callback(_seen)
            self._fetched_link = link
        fetching, tenure = self._fetching, self.tenure
        await asyncio.wait([fetching])  # to await the task itself would raise its CancelledError at the caller
        if fetching.cancelled() or tenure != self.tenure:
            raise LeaseLost
        try:
            return fetching.result()
        except Exception:
            self._drop_page()
            raise

    def _drop_page(self) -> None:
        fetching, self._fetching = self._fetching, None
        if fetching is not None:
            fetching.cancel()

    async def _spliced(self, items: list[HandedEvent | Gap], page: SnapshotPage) -> list[HandedEvent | Gap]:
        """The stream up to the page, then the page; what comes later is kept for after it."""
        place, later = order(page.entry), len(items)
        for at, one in enumerate(items):
            if isinstance(one, HandedEvent) and order(one.entry) > place:
                later = at
                break
        if later and isinstance(items[later - 1], Gap):  # it is reported before the event that it precedes
            later -= 1
        records = await self._records(page)
        before = [*items[:later], *records]
        await self._turn(page, [one for one in before if isinstance(one, HandedEvent)])
        self._later = items[later:]
        return before

    async def _records(self, page: SnapshotPage) -> list[HandedEvent]:
        handled = await self.store.handled_records()
        return [
            HandedEvent(event, self, self.tenure, "", record.sequence, record)
            for record, event in RecordPages.events(page)
            if handled.get(record.digest) != record.event_id and record.key not in self.unsettled
        ]

    async def _turn(self, page: SnapshotPage, before: Sequence[HandedEvent]) -> None:
        """Go on to the next page; this is stored once all that was handed out before it is acknowledged."""
        self._link, self._page, self._bootstrap = page.following, None, bool(page.following)
        self._drop_page()
        if self.watch is not None and not page.following:
            self.watch.restart(clock() + WATCH_LEASES * self.settings.lease.total_seconds())
        turn = Turn(page.following, page.generation)
        if before:
            before[-1].turns_to = turn
            return
        while self.unsettled:
            last = next(reversed(self.unsettled.values()))
            if last not in self.done:
                last.turns_to = turn
                return
            await self.settle()
        await self._store_turn(turn)

    async def _store_turn(self, turn: Turn) -> None:
        state = {"page": turn.following, "generation": turn.generation}
        if not turn.following:
            state["bootstrap"] = "done"
        await self.store.note_records({}, state=state, begins_page=True)
        if not turn.following:
            _log.info("%s: the bootstrap is complete", self.feed)

    # Acknowledging.

    def _included(self, handed: HandedEvent) -> list[HandedEvent]:
        """All events that were handed out before this one, and it: order is promised."""
        found = []
        for one in self.unsettled.values():
            found.append(one)
            if one is handed:
                return found
        return []

    async def _acknowledge(self, done: Sequence[HandedEvent]) -> None:
        entries = [one for one in done if one.entry]
        if entries:
            place = entries[-1].entry
            sequence = entries[-1].sequence
            await self.store.acknowledge([one.entry for one in entries], place=place, sequence=sequence)
            self._place = place
            if self._sequence is not None and sequence is not None:  # what comes is what is not acknowledged
                self._sequence = max(self._sequence, sequence)
        turn = max((at for at, one in enumerate(done) if one.turns_to is not None), default=-1)
        if turn >= 0:
            await self._store_turn(cast("Turn", done[turn].turns_to))
        records = {one.record.digest: one.record.event_id for one in done[turn + 1 :] if one.record is not None}
        if records:
            await self.store.note_records(records)

    def _is_repeat(self, handed: HandedEvent) -> bool:
        event_id = handed.event.get_id()
        return super()._is_repeat(handed) or (
            event_id in self._recent and self._latest.get(_record_of(handed)) == event_id
        )


@dataclass(eq=False)
class SharedReader(FeedReader):
    """A reader that shares the feed with other members, each with some of the entries, in no order."""

    _cursor: str = _FIRST
    _claim_at: float = 0.0
    _claim_cursor: str = _FIRST

    async def renew(self) -> None:
        """Keep the entries at hand from being claimed by others."""
        count = len(self.batch) + len(self.unsettled)
        if count:
            before = clock()
            await self.store.keep_claimed(2 * count + self.settings.batch)
            self._hold(before)

    async def _step(self) -> bool:
        phase, self.phase = self.phase, Phase.STANDBY
        if phase is Phase.STANDBY:
            return await self._open()
        self.due = 0.0
        if phase is Phase.CLAIMING:
            return await self._read_own()
        return await self._read()

    def _go_on(self, phase: Phase) -> None:
        """The answer is there: nothing need be asked for again."""
        self.phase, self.due = phase, self._claim_at

    async def _open(self) -> bool:
        if clock() < self.due:
            return False
        await self.store.acquire(start=self.settings.start, known="")
        self._cursor = self._claim_cursor = _FIRST
        self._go_on(Phase.CLAIMING)
        return True

    async def _read_own(self) -> bool:
        before = clock()
        found = await self.store.read(after=self._cursor, most=self._room())
        await self._add(before, found.entries, [entry for entry, content in found.entries if content is None])
        if found.entries:
            self._cursor = found.entries[-1][0]
        self._go_on(Phase.CLAIMING if found.entries else Phase.READING)
        return True

    async def _read(self) -> bool:
        before = clock()
        if before >= self._claim_at:
            claimed = await self.store.claim(begin=self._claim_cursor, idle=self.settings.lease, most=self._room())
            await self._add(before, claimed.entries, claimed.gone)
            self._claim_cursor = claimed.following
            if claimed.following == _FIRST:
                self._claim_at = before + self.settings.lease.total_seconds() * random.uniform(0.25, 0.5)  # noqa: S311 -- as above
            self._go_on(Phase.READING)
            return True
        found = await self.store.read(most=self._room())
        self._measure(found.entries)
        await self._add(before, found.entries, ())
        self._go_on(Phase.READING)
        self.tail = "" if self.batch else found.last
        return bool(self.batch)

    async def _add(self, before: float, entries: Sequence[StreamEntry], gone: Sequence[str]) -> None:
        items, unreadable = list[HandedEvent | Gap](), list(gone)
        if gone:
            erased = await self.store.erased.among(gone)
            items.append(Gap(self.feed, after=None, before=None, missing=len(gone), reason="deleted", erased=erased))
        for entry, content in entries:
            if content is not None and entry not in self.unsettled:
                handed = self._handed(entry, content)
                if handed is not None:
                    items.append(handed)
                else:
                    unreadable.append(entry)
        if unreadable:
            await self.store.acknowledge(unreadable)
        self.batch.extend(items)
        self._hold(before)

    def _hold(self, before: float) -> None:
        self._held_until = before + self.settings.lease.total_seconds()

    def _included(self, handed: HandedEvent) -> list[HandedEvent]:
        return [handed] if handed.key in self.unsettled else []

    async def _acknowledge(self, done: Sequence[HandedEvent]) -> None:
        entries = [one.entry for one in done]
        await self.store.acknowledge(entries, place=max(entries, key=order))


def _record_of(handed: HandedEvent) -> str:
    """What all events of a record have in common; the letters of a UUID may come in another case."""
    return (handed.event.get_subject() or "").lower()


def _remember(kept: OrderedDict[str, str], name: str, value: str) -> None:
    """Keep the latest of these."""
    kept[name] = value
    kept.move_to_end(name)
    if len(kept) > _RECENT:
        kept.popitem(last=False)


def _seen(fetching: asyncio.Task[SnapshotPage]) -> None:
    """Take the error of a fetch that nothing waits for."""
    if not fetching.cancelled():
        fetching.exception()
