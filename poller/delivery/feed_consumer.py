"""Feed consumer: one subscription reading one feed, from the stream to the sink.

It runs as long as the lease is held: one loop, and a task for each attempt in flight. The loop opens the queues that
are due, starts attempts, reads entries when there is room, and writes ack batches; then it waits for a change. Results
that nothing waits for are gathered for :data:`GATHER`, or until they are many: the faster events come, the more of them
are in one write. :mod:`poller.delivery.delivery_tracker` describes the states of an entry.

While the loop waits it is *idle*, and what happens all the time is done without it, because a turn of it costs as much
again: new entries are read, taken in and sent, and gathered results are written. Anything else is left to the loop,
together with the answer that has come: failures, baselines, backfills, replays, retries, the end of a run.

**Invariants**

* A short unavailability of the store ends nothing: attempts in flight end, and their results are written when the store
  is available again, if the lease still holds.
* Entries that the store has handed out are delivered. A lost reply may have contained entries, which the group then
  holds for this consumer; so after any failure the pending entries of the group are read before new ones. A lost group
  is created again, and entries that were read before are marked as known.
* The loop and what is done without it are never at work at the same time: without it nothing begins unless it is idle,
  and it waits for the end of what has begun before it reads or settles itself. So each run has one reading and one
  settlement under way at most, and what a settlement says was true when it was sent.
* A run begins with an empty settlement, before anything is read: what an earlier run of this process sent and the
  network delivers late writes nothing after it, and if the store loses what was settled before, the run ends.
* Redeliveries, replays and backfills are read only on demand, and never twice. A replay is read only after all entries
  up to its end that the group has to deliver, because earlier events of a record that come later count as settled.
* A chunk of a backfill is queued behind all entries up to its own, and before all later ones
  (:mod:`poller.delivery.backfill`). Entries that are read on both sides of that place are split there.
* Memory is bounded: :data:`WINDOW` fresh entries or :data:`WINDOW_BYTES`, as much of a replay and of a backfill, and
  the ids of :data:`MOST_PARKED` scheduled retries; then nothing more is read. Replays and backfills leave half of these
  to new entries.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

import structlog

from poller.changes.events import MAX_EVENT_BYTES
from poller.clock import Clock, milliseconds_of
from poller.delivery.backfill import BackfillChunk, BackfillReader, BackfillSource, BackfillStorage
from poller.delivery.delivery_codec import Delivery, deliveries_of
from poller.delivery.delivery_tracker import AckBatch, DeliveryTracker
from poller.delivery.dispatcher import Dispatcher, EventSource
from poller.delivery.endpoint import EndpointState
from poller.delivery.filters import meets_baseline
from poller.errors import ErasureUnknown, Fenced, GroupGone, StoreError, StoreUnavailable
from poller.failpoints import reach
from poller.store.consumer_state import NO_ERASURES, Entry, ErasedRecords, SentSettlement, Settlement, Start
from poller.store.replay import ReplaySpan
from poller.store.stream import FIRST_ID, EntryId
from poller.text import one_line

_PAUSE: Final = 1.0  # seconds between attempts while the store is unavailable

_log = structlog.get_logger("poller.delivery")


class RepeatSource(Protocol):
    """The part of :class:`poller.store.consumer_state.ConsumerStore` for scheduled retries and replays."""

    async def parked(self) -> Mapping[str, bytes]:
        """The scheduled retries."""
        ...

    async def parked_besides(self, known: Container[str]) -> Mapping[str, bytes]:
        """The scheduled retries that are not known yet."""
        ...

    async def replay(self) -> ReplaySpan | None:
        """The replay under way."""
        ...

    async def past(self, span: ReplaySpan, *, most: int) -> Sequence[tuple[str, bytes]]:
        """The next entries of a replay."""
        ...


class ReadSize:
    """How many entries one read may ask for: half as many after each failure, for a large reply may take too long."""

    def __init__(self) -> None:
        """Begin without a limit."""
        self._limit: int | None = None

    def of(self, most: int) -> int:
        """As many as asked for, if that is not too many."""
        return most if self._limit is None else min(most, self._limit)

    def failed(self, asked: int) -> None:
        """A read of this many failed."""
        self._limit = max(1, asked // 2)

    def worked(self, asked: int) -> None:
        """A read of this many succeeded; if that was the limit, the next may be twice as large."""
        if asked == self._limit:
            self._limit *= 2


class RepeatReader:
    """Reads scheduled retries, redeliveries and replays for one run of a feed consumer."""

    def __init__(
        self,
        tracker: DeliveryTracker,
        store: RepeatSource,
        *,
        window: int,
        window_bytes: int,
        where: Mapping[str, str],
        clock: Clock,
    ) -> None:
        """Begin without requests.

        Args:
            tracker: gets the entries.
            store: of the feed consumer.
            window: the greatest number of entries of a replay in memory.
            window_bytes: of these bytes at most, by the largest event of the last read.
            where: feed and subscription, for the log.
            clock: the store's.
        """
        self._tracker = tracker
        self._store = store
        self._window = window
        self._window_bytes = window_bytes
        self._largest = MAX_EVENT_BYTES
        self._where = where
        self._clock = clock
        self._asked = False
        self._size = ReadSize()
        self._not_before = clock.monotonic()

    def ask(self) -> None:
        """Read again: another process has scheduled deliveries or requested a replay."""
        self._asked = True

    @property
    def is_asked(self) -> bool:
        """Whether to read again, see :meth:`ask`."""
        return self._asked

    @property
    def wanted(self) -> bool:
        """Whether there is more of a replay to read."""
        return not self._tracker.replay.is_read

    @property
    def next_moment(self) -> float:
        """When reading is possible again after a failure, perhaps in the past."""
        return self._not_before

    @property
    def _is_waiting(self) -> bool:
        return self._clock.monotonic() < self._not_before

    async def load(self) -> None:
        """Load all scheduled retries, at the start of a run.

        Raises:
            StoreError: they cannot be read.
        """
        self._tracker.restore(_read(await self._store.parked()), now=self._clock.now(), clock=self._clock.monotonic())
        await self._follow()

    async def read_scheduled(self) -> None:
        """Read deliveries that other processes have scheduled, after :meth:`ask`.

        Raises:
            StoreError: they cannot be read.
        """
        if not self._asked or self._is_waiting:
            return
        self._asked = False
        try:
            kept = _read(await self._store.parked_besides(self._tracker.known))
            self._tracker.join(kept, now=self._clock.now(), clock=self._clock.monotonic())
            await self._follow()
        except StoreUnavailable as error:
            self._asked = True
            self._failed(error)

    async def read(self, *, has_read: Callable[[str], bool]) -> bool:
        """Read the next events of a replay while there is room. True: there were some.

        Args:
            has_read: whether all that the group has to deliver up to an entry was read.

        Raises:
            StoreRefused: the store refuses the command.
        """
        span, room = self._tracker.replay.wants(self._window), self._window_bytes - self._tracker.replay.open_bytes
        if span is None or room <= 0 or self._is_waiting or not has_read(span.to):
            return False
        most = self._size.of(min(self._window, 1 + room // self._largest))
        try:
            entries = await self._store.past(span, most=most)
        except StoreUnavailable as error:
            self._size.failed(most)
            self._failed(error)
            return False
        self._size.worked(most)
        self._tracker.replay.took(entries, most=most)
        self._tracker.take_again(entries)
        self._largest = max((len(event) for _, event in entries), default=0) or self._largest
        return True

    async def _follow(self) -> None:
        self._tracker.replay = self._tracker.replay.follows(await self._store.replay())

    def _failed(self, error: StoreUnavailable) -> None:
        _log.debug("redeliveries and replays not read", **self._where, error=str(error))
        self._not_before = self._clock.monotonic() + _PAUSE


def _read(parked: Mapping[str, bytes]) -> Mapping[str, Delivery]:
    try:
        return deliveries_of(parked)
    except ValueError as error:  # another version's; skipping it would break the order of its record
        raise StoreError(f"what waits for its next attempt cannot be read: {error}") from None


class EntrySource(Protocol):
    """The part of :class:`poller.store.consumer_state.ConsumerStore` that reads entries."""

    async def open(self, start: Start) -> None:
        """Create the group if it does not exist."""
        ...

    async def pending(self, after: str, *, most: int) -> list[Entry]:
        """Pending entries of the group."""
        ...

    async def read(self, *, most: int) -> list[Entry]:
        """New entries."""
        ...

    def begin_read(self, *, most: int) -> Future[Any]:
        """The future of new entries, a list, or of something else where there are none to be had."""
        ...

    async def entries_of(self, answer: Future[Any]) -> list[Entry]:
        """What :meth:`read` returns or raises, of a reading begun with :meth:`begin_read`."""
        ...


class EntryReader:
    """Reads entries for one run of a feed consumer."""

    def __init__(self, store: EntrySource, start: Start, *, feed: str, clock: Clock) -> None:
        """Begin before the first read.

        Args:
            store: of the feed consumer.
            start: the start position of a new group.
            feed: for the log.
            clock: the store's.
        """
        self.known_to = ""
        self.pending = False  # whether the entries read last had been handed out before
        self.reads = 0  # of new entries, begun so far
        self.openings = 0  # how often the group was created, or found
        self._ended = 0  # the last one of them that came to the end of the stream
        self._through = FIRST_ID  # all up to this entry was read, whether or not it was there still
        self._store = store
        self._start = start
        self._feed = feed
        self._clock = clock
        self._size = ReadSize()
        self._asked = 0  # of the reading under way: how many at most
        self._opened = False
        self._unread = True
        self._held_after: str | None = "0"
        self._at_end = False
        self._last = ""
        self._not_before = clock.monotonic()

    def news(self) -> None:
        """The stream has new entries."""
        self._unread = True

    @property
    def next_moment(self) -> float | None:
        """When to read again, perhaps in the past; None: there is nothing to read."""
        return self._not_before if self._unread else None

    @property
    def wanted(self) -> bool:
        """Whether there may be entries to read."""
        return self._unread and self._clock.monotonic() >= self._not_before

    def has_read(self, entry: str) -> bool:
        """Whether all that the group has to deliver up to this entry was read."""
        if self._held_after is not None:
            return False
        return self._at_end or bool(self._last and EntryId.parse(self._last) >= EntryId.parse(entry))

    @property
    def last(self) -> str:
        """The last entry that was read; empty: none was."""
        return self._last

    @property
    def is_reading_pending(self) -> bool:
        """Whether entries that were handed out before are to be read first."""
        return self._held_after is not None

    def has_read_since(self, entry: str, reads: int) -> bool:
        """Whether all that the group has to deliver up to this entry was read.

        Args:
            entry: was in the stream when this many reads had begun; it may be gone since.
            reads: how many.
        """
        if self._held_after is not None:
            return False
        place = EntryId.parse(entry)
        if self._ended > reads or (self._last and EntryId.parse(self._last) >= place):
            self._through = max(self._through, place)
        return self._through >= place

    async def read(self, most: int) -> Sequence[Entry]:
        """Some entries, in stream order; those up to ``known_to`` were read before.

        None while the store is unavailable; the caller retries a moment later.

        Raises:
            Fenced: another process has the lease, or the store has lost what was read here.
            StoreRefused: the store refuses the command.
        """
        self._unread = False  # news that arrives during the command counts
        self._asked = self._size.of(most)
        return await self._read(self._some(self._asked))

    def begin_read(self, most: int) -> Future[Any] | None:
        """Begin to read new entries, for :meth:`brought` or :meth:`finish_read`; None: others are to be read first."""
        if not self._opened or self._held_after is not None:
            return None
        self._unread = self.pending = False
        self._asked = self._size.of(most)
        self.reads += 1
        return self._store.begin_read(most=self._asked)

    def brought(self, answer: Future[Any]) -> Sequence[Entry] | None:
        """What a reading that has ended has brought, for :meth:`took`; None: see :meth:`finish_read`."""
        if answer.cancelled() or answer.exception() is not None:
            return None
        entries = answer.result()
        return entries if isinstance(entries, list) and not self._is_older(entries) else None

    async def finish_read(self, answer: Future[Any]) -> Sequence[Entry]:
        """What :meth:`read` returns or raises, of a reading that was begun before."""
        return await self._read(self._store.entries_of(answer))

    async def _read(self, reading: Awaitable[Sequence[Entry]]) -> Sequence[Entry]:
        try:
            entries = await reading
        except GroupGone as error:
            _log.warning("the consumer group is made again", feed=self._feed, error=str(error))
            self.known_to = self._last
            self._opened, self._held_after, self._unread, self._at_end = False, "0", True, False
            self._through = FIRST_ID
            return ()
        except StoreUnavailable as error:
            # If the store is unavailable for long, the lease is lost, and that is logged.
            _log.debug("not reading", feed=self._feed, most=self._asked, error=str(error))
            self._size.failed(self._asked)
            self._held_after = "0" if self.known_to else self._last or "0"
            self._not_before, self._unread = self._clock.monotonic() + _PAUSE, True
            return ()
        if not self.pending and self._is_older(entries):
            # Some of them may be new: another server's clock may be behind the one that gave the ids before.
            raise Fenced(f"the store lost what was read of {self._feed}; all that it holds is read again")
        self.took(entries)
        return entries

    def _is_older(self, entries: Sequence[Entry]) -> bool:
        """Whether new entries are none."""
        return bool(entries and self._last and not self.known_to and _id(entries[0]) <= EntryId.parse(self._last))

    def took(self, entries: Sequence[Entry]) -> None:
        """Record that these were read."""
        self._size.worked(self._asked)
        if self.pending or len(entries) == self._asked:
            self._unread = True
        else:
            self._at_end, self._ended = True, self.reads
        if entries:
            last = entries[-1][0]
            self._last = last if not self._last else max(self._last, last, key=EntryId.parse)

    async def _some(self, most: int) -> Sequence[Entry]:
        if not self._opened:
            await self._store.open(self._start)
            self._opened, self.openings = True, self.openings + 1
        if self._held_after is not None:
            entries = await self._store.pending(self._held_after, most=most)
            self._held_after = entries[-1][0] if entries else None
            if entries:
                self.pending = True
                return entries
        self.pending = False
        self.reads += 1
        return await self._store.read(most=most)


def _id(entry: Entry) -> EntryId:
    return EntryId.parse(entry[0])


WINDOW: Final = 64
WINDOW_BYTES: Final = 4 * 1024 * 1024
MOST_PARKED: Final = 1000
_FULL: Final = (
    "nothing more is read of this feed for this subscription, whichever record it is of, until some are delivered or "
    "given up. Let the sink accept the events of this record, or make retry.schedule shorter: they become dead letters "
    "sooner, and the others come"
)
LAST_WAIT: Final = 3.0  # seconds that requests in flight may still take after a stop
NOTE_COUNTS: Final = 5.0  # seconds between two writes of the attempt counts
GATHER: Final = 0.1  # seconds; after a crash, the deliveries of this time are sent again


class ConsumerStorage(EntrySource, EventSource, RepeatSource, BackfillStorage, Protocol):
    """The part of :class:`poller.store.consumer_state.ConsumerStore` that a feed consumer needs."""

    async def erasures(self) -> ErasedRecords:
        """The erasures of records; :meth:`settle` knows of them from now on."""
        ...

    async def reset_entry(self) -> str | None:
        """The last entry before the feed's reset; baselines after it repeat earlier events."""
        ...

    async def settle(self, settlement: Settlement, *, now_ms: int) -> None:
        """Write an ack batch.

        Raises:
            ErasureUnknown: a record was erased since :meth:`erasures`; nothing was written.
        """
        ...

    def begin_settle(self, settlement: Settlement, *, now_ms: int) -> SentSettlement:
        """Begin to write an ack batch."""
        ...

    def note_answer(self, sent: SentSettlement) -> bool:
        """Take note that it was written. False: it was not, or is not known to be; :meth:`settled` says why."""
        ...

    async def settled(self, sent: SentSettlement) -> None:
        """Wait until it was written; raises what :meth:`settle` does."""
        ...

    def give_up(self, reading: Future[Any] | None, sent: SentSettlement | None) -> None:
        """Await no answer to what was begun."""
        ...


class SharedTimer:
    """Calls functions after a time, all at the moment that the first of them was added for.

    A timer for each of a thousand consumers would cost as much as a part of what they do then.
    """

    def __init__(self, seconds: float, clock: Clock) -> None:
        """Begin without functions; ``seconds``: how long after the first of them all are called."""
        self._seconds = seconds
        self._clock = clock
        self._waiting: list[Callable[[], None]] = []

    def add(self, function: Callable[[], None]) -> None:
        """Call this function once."""
        if not self._waiting:
            self._clock.call_after(self._seconds, self._fired)
        self._waiting.append(function)

    def _fired(self) -> None:
        waiting, self._waiting = self._waiting, []
        for function in waiting:
            function()


class FeedConsumer:
    """Delivers one feed to one subscription. :meth:`run` it as long as the lease is held."""

    def __init__(
        self,
        feed: str,
        endpoint: EndpointState,
        store: ConsumerStorage,
        *,
        backfills: Callable[[], BackfillSource | None] = lambda: None,
        gathering: SharedTimer | None = None,
        clock: Clock,
    ) -> None:
        """Join the parts.

        Args:
            feed: ``SOURCE/NAME``.
            endpoint: of the subscription.
            store: of this feed consumer.
            backfills: makes the source of the feed's records; None: this process does not have the feed.
            gathering: of :data:`GATHER`, shared by the feed consumers of a process; None: one of its own.
            clock: the store's.
        """
        self.feed = feed
        self._gathering = gathering or SharedTimer(GATHER, clock)
        self._backfills = backfills
        self._endpoint = endpoint
        self._subscription = endpoint.subscription
        self._store = store
        self._clock = clock
        batching = self._subscription.batching
        self._window = max(WINDOW, 4 * batching.max_events, 4 * self._subscription.concurrency)
        self._window_bytes = max(WINDOW_BYTES, 2 * (batching.max_bytes or 0))
        self._changed = asyncio.Event()
        self._is_idle = False  # whether the loop waits for a change
        self._reading: Future[Any] | None = None  # begun for news, while the loop was idle
        self._timer: asyncio.TimerHandle | None = None  # of the wait
        self._timer_at = 0.0
        self._stopping = False
        self._is_full = False  # of scheduled retries, since that was logged
        self._reset()

    def _reset(self) -> None:
        """Discard the state of an earlier run: another process may have had the lease since."""
        projection = self._subscription.projection
        self._tracker = DeliveryTracker(self._subscription, projection(self.feed) if projection else None)
        self._queues = self._tracker.queues
        self._intake = EntryReader(self._store, self._subscription.start, feed=self.feed, clock=self._clock)
        self._requests = Dispatcher(
            self._tracker,
            self._endpoint,
            self._store,
            feed=self.feed,
            changed=self._attempt_ended,
            clock=self._clock,
        )
        self._repeats = RepeatReader(
            self._tracker,
            self._store,
            window=self._window,
            window_bytes=self._window_bytes,
            where={"feed": self.feed, "subscription": self._subscription.id},
            clock=self._clock,
        )
        self._backfill = BackfillReader(
            self._tracker.backfill,
            self._store,
            self._backfills,
            window=self._window,
            window_bytes=self._window_bytes,
            is_live=self._subscription.start == "now",
            where={"feed": self.feed, "subscription": self._subscription.id},
            clock=self._clock,
        )
        self._largest = MAX_EVENT_BYTES
        self._sent: tuple[AckBatch, SentSettlement] | None = None  # begun while the loop was idle
        self._is_gathering = False  # results, until the shared timer
        self._is_gathered = False  # since the shared timer, until the next write
        self._note_by: float | None = None
        self._reloads = False  # whether records may have been erased since that was read
        self._erasures = NO_ERASURES.number

    def news(self) -> None:
        """The stream has new entries."""
        self._intake.news()
        self._without_loop(self._begin_reading)

    def _without_loop(self, work: Callable[[], bool]) -> None:
        """Do something while the loop is idle; it goes on if there is more to do, or after a fault of the program."""
        try:
            is_all = work()
        except Exception as error:  # noqa: BLE001 -- the loop raises it
            self._requests.failed, is_all = error, False
        if not is_all:
            self._changed.set()

    def _begin_reading(self) -> bool:
        """Begin to read what has come. False: that is not all there is to do."""
        if not self._is_idle or not self._store.held:
            return False
        if self._reading is not None:
            return True  # its end sees that there is more
        most = self._count_to_read()
        self._reading = self._intake.begin_read(most) if most else None
        if self._reading is None:
            return False
        self._reading.add_done_callback(self._reading_ended)
        return True

    def _reading_ended(self, answer: Future[Any]) -> None:
        if answer is self._reading and self._is_idle:  # else the loop waits for it, or the run has ended
            self._without_loop(partial(self._end_reading, answer))

    def _end_reading(self, answer: Future[Any]) -> bool:
        """Take in what was read, and send it. False: that is not all there is to do."""
        entries = self._intake.brought(answer)
        if entries is None or meets_baseline(self._subscription, entries):
            return False
        self._reading = None
        self._intake.took(entries)
        self._take_in(entries)
        if entries:
            reach("delivery.read")
            self._requests.start()
        return self._begin_rest()

    def _begin_rest(self) -> bool:
        """Begin what else is to be done now. False: that is not all there is to do."""
        if self._queues.ready or not self._is_timed():
            return False
        if self._has_to_settle() and not self._gathers() and not self._begin_settling():
            return False
        return not self._intake.wanted or self._begin_reading()

    def wake(self) -> None:
        """Run the loop once more: something may have changed."""
        self._changed.set()

    def reload(self) -> None:
        """Read again: another process has scheduled deliveries or requested a replay or a backfill."""
        self._repeats.ask()
        self._backfill.ask()
        self._reloads = True
        self._changed.set()

    def ready(self) -> None:
        """Allow another run after a stop."""
        self._stopping = False

    def stop(self) -> None:
        """Start no more attempts; :meth:`run` returns when the attempts in flight have ended, or soon."""
        self._stopping = True
        self._changed.set()

    async def run(self) -> None:
        """Deliver until stopped.

        Raises:
            Fenced: another process has the lease, or may have.
            StoreError: the store refuses a command.
        """
        erased = self._tracker.erased
        self._reset()
        self._tracker.learn_erased(erased)  # the store takes settlements by what was known before
        self._endpoint.listen(self.wake)
        try:
            await self._write(AckBatch())
            await self._repeats.load()
            await self._backfill.follow()
            while not self._stopping:
                self._changed.clear()
                began = self._clock.monotonic()
                await self._finish_settling()
                self._end_pause(began)
                if not self._store.held:
                    await self._settle()
                    raise Fenced(f"the lease of {self.feed} was not renewed in time")
                if self._reloads or self._repeats.is_asked or self._backfill.is_asked:
                    await self._look_at_erasures()
                    await self._repeats.read_scheduled()
                    await self._backfill.follow_asked()
                self._requests.start()
                self._report_full()
                if self._reading is not None or self._intake.wanted:
                    await self._read()
                if self._repeats.wanted:
                    await self._read_again()
                if self._backfill.wanted:
                    await self._read_backfill()
                if self._has_to_settle() and not self._gathers():
                    await self._settle()
                if self._note_by is None or began >= self._note_by:
                    await self._note_counts()
                if not self._changed.is_set() and self._set_timer(began):
                    self._is_idle = True
                    await self._changed.wait()  # a timer that is left from an earlier turn costs one turn too many
                    self._is_idle = False
            await self._requests.finish(within=LAST_WAIT)
            await self._settle()
        finally:
            self._is_idle = False
            self._store.give_up(self._reading, self._sent and self._sent[1])
            self._reading = self._sent = None
            self._endpoint.leave(self.wake)
            await self._requests.cancel()
            self._stop_timer()

    def _end_pause(self, began: float) -> None:
        """Let what waits for the end of a pause of the sink go on, if that has ended; ``began``: now."""
        if self._tracker.waits_for_sink and not self._endpoint.is_paused:
            self._tracker.end_pause(clock=began)

    async def _read(self) -> None:
        openings = self._intake.openings
        if self._reading is not None:
            entries = await self._intake.finish_read(self._reading)
            self._reading = None
        elif most := self._count_to_read():
            entries = await self._intake.read(most)
        else:
            return
        if self._intake.openings != openings:
            self._backfill.ask()  # a group that begins with the snapshots
            self._changed.set()
        if self._intake.wanted:
            self._changed.set()
        if entries or self._backfill.is_waiting:
            await self._splice(entries)
        if entries:
            reach("delivery.read")
            if not self._stopping:
                self._requests.start()  # another turn would find nothing else to do

    async def _splice(self, entries: Sequence[Entry]) -> None:
        """Take in what was read, with the chunk of a backfill at its place."""
        reset = await self._store.reset_entry() if meets_baseline(self._subscription, entries) else None
        self._take_in(entries, reset)

    def _take_in(self, entries: Sequence[Entry], reset: str | None = None) -> None:
        self._largest = max((len(event or b"") for _, event in entries), default=0) or self._largest
        now, known_to, pending = self._clock.now(), self._intake.known_to, self._intake.pending
        for part in self._backfill.spliced(entries, self._intake):
            if isinstance(part, BackfillChunk):
                self._tracker.take_backfilled(part)
                self._changed.set()
                continue
            refused = self._tracker.take_in(part, now=now, known_to=known_to, reset_entry=reset, pending=pending)
            for entry, reason in refused:
                _log.warning(
                    "not delivered", feed=self.feed, subscription=self._subscription.id, entry=entry, reason=reason
                )

    async def _read_again(self) -> None:
        endpoint = self._endpoint
        if self._queues.parked >= MOST_PARKED // 2 or endpoint.resting or endpoint.breathing:
            return
        if await self._repeats.read(has_read=self._intake.has_read):
            self._changed.set()

    async def _read_backfill(self) -> None:
        endpoint = self._endpoint
        if self._queues.parked >= MOST_PARKED // 2 or endpoint.resting or endpoint.breathing:
            return
        if self._intake.is_reading_pending:
            return
        if await self._backfill.read(self._intake):
            await self._splice(())
            if self._backfill.is_waiting:
                self._intake.news()  # what came before the chunk is to be read
            self._changed.set()

    def _report_full(self) -> None:
        """Log once that too many retries wait for anything to be read, until half of them are gone."""
        parked = self._queues.parked
        if parked <= MOST_PARKED // 2:
            self._is_full = False
        elif parked >= MOST_PARKED and not self._is_full:
            self._is_full = True
            record, count = self._queues.most_parked
            _log.warning(
                "not reading: too many events wait for their next attempt",
                feed=self.feed,
                subscription=self._subscription.id,
                waiting=parked,
                record=one_line(record),
                of_record=count,
                advice=_FULL,
            )

    def _room(self) -> int:
        """The number of entries that may be read now."""
        queues, endpoint = self._queues, self._endpoint
        if queues.parked >= MOST_PARKED or endpoint.resting or (endpoint.breathing and queues.fresh):
            return 0
        if queues.fresh_bytes >= self._window_bytes:
            return 0
        return min(self._window - queues.fresh, 1 + (self._window_bytes - queues.fresh_bytes) // self._largest)

    def _count_to_read(self) -> int:
        """The number of entries to read now."""
        most = self._room()
        if self._queues.ready and most < self._window // 2:
            return 0  # reading many costs little more than reading one
        return max(most, 0)

    def _has_to_settle(self) -> bool:
        """Whether :meth:`_settle` has something to do."""
        return self._tracker.has_batch or self._requests.failed is not None or self._endpoint.has_unstored_pause

    def _gathers(self) -> bool:
        """Whether to gather more results before the next write."""
        if self._is_gathered or not self._tracker.patient or self._requests.failed:
            return False
        if not self._is_gathering:
            self._is_gathering = True
            self._gathering.add(self._gathered)
        return True

    def _gathered(self) -> None:
        """Write what was gathered."""
        self._is_gathering = False
        if self._has_to_settle():
            self._is_gathered = True
            self._without_loop(self._begin_settling)

    def _begin_settling(self) -> bool:
        """Begin to write what was gathered. False: that is not all there is to do."""
        if not self._is_idle or not self._store.held:
            return False
        if self._sent is not None:
            return True  # its end sees that there is more
        if self._endpoint.has_unstored_pause:
            return False  # first: who takes over must not ask a sink that wants to be left alone
        draft, self._is_gathered = self._tracker.next_batch(), False
        if draft is None:
            return False
        reach("delivery.settling")
        now_ms = milliseconds_of(self._clock.now())
        sent = self._store.begin_settle(draft.settlement(), now_ms=now_ms)
        self._sent = draft, sent
        sent.answer.add_done_callback(self._settling_ended)
        return True

    def _settling_ended(self, answer: Future[Any]) -> None:
        if self._sent is not None and self._sent[1].answer is answer and self._is_idle:
            self._without_loop(partial(self._end_settling, *self._sent))

    def _end_settling(self, draft: AckBatch, sent: SentSettlement) -> bool:
        """Let the queues go on whose settlements were written. False: that is not all there is to do."""
        if not self._store.note_answer(sent):
            return False
        self._sent = None
        self._was_written(draft)
        return self._begin_rest() and self._note_by is not None

    async def _finish_settling(self) -> None:
        """Wait for the end of what :meth:`_begin_settling` has begun."""
        if self._sent is None:
            return
        draft, sent = self._sent
        try:
            await self._store.settled(sent)
        except ErasureUnknown:
            self._tracker.learn_erased((await self._store.erasures()).places, draft)
            await self._write(draft)
        self._sent = None
        self._was_written(draft)

    def _attempt_ended(self) -> None:
        """Run the loop once more, unless all that is to be done is to write the result, which can wait."""
        if self._changed.is_set():
            return
        more = self._queues.ready or self._intake.wanted or self._repeats.wanted or self._backfill.wanted
        if more or (self._has_to_settle() and not self._gathers()):
            self._changed.set()

    async def _settle(self) -> None:
        """Write what is drafted; then let the queues go on."""
        await self._finish_settling()
        await self._requests.note_pause()  # first: who takes over must not ask a sink that wants to be left alone
        draft, self._is_gathered = self._tracker.next_batch(), False
        if draft:
            reach("delivery.settling")
            await self._write(draft)
            if self._was_written(draft):
                self._changed.set()
        if self._requests.failed is not None:
            raise self._requests.failed

    def _was_written(self, draft: AckBatch) -> bool:
        """Let what waited for a settlement go on. True: attempts may start."""
        reach("delivery.settled")
        goes_on = self._tracker.written(draft)
        if draft.backfill is not None:
            self._changed.set()
            if not draft.backfill.at:
                self._backfill.completed(draft.backfill)
        return goes_on and self._queues.ready

    async def _write(self, draft: AckBatch) -> None:
        """Write a batch; without what is of erased records, if it is refused for that."""
        while True:
            try:
                now_ms = milliseconds_of(self._clock.now())
                settlement = draft.settlement() if draft else Settlement()
                return await self._store.settle(settlement, now_ms=now_ms)
            except ErasureUnknown:
                self._tracker.learn_erased((await self._store.erasures()).places, draft)

    async def _look_at_erasures(self) -> None:
        """After :meth:`reload`: read which records were erased, and write that this process knows."""
        if not self._reloads:
            return
        self._reloads = False
        try:
            known, marks = self._erasures, await self._store.erasures()
        except StoreUnavailable as error:
            _log.debug("erasures not read", feed=self.feed, subscription=self._subscription.id, error=str(error))
            self._reloads = True  # until then, no settlement passes that does not know of them
            self._clock.call_after(_PAUSE, self.wake)
            return
        self._erasures = marks.number
        self._tracker.learn_erased(marks.places)
        if marks.number != known:
            await self._write(AckBatch())

    async def _note_counts(self) -> None:
        """Have the counts of attempts stored soon after they changed, for status displays."""
        if self._note_by is None:
            if self._endpoint.uncounted(self.feed):
                self._note_by = self._clock.monotonic() + NOTE_COUNTS
        elif self._clock.monotonic() >= self._note_by:
            self._note_by = None
            try:
                await self._endpoint.store_health(self.feed)
            except StoreUnavailable as error:
                _log.debug("not noted", feed=self.feed, subscription=self._subscription.id, error=str(error))
                self._note_by = self._clock.monotonic() + NOTE_COUNTS

    def _set_timer(self, began: float) -> bool:
        """Set a timer for the first moment after ``began``, when this turn began. False: there is something to do now.

        What had passed by then waits for something else: a free place, or the end of a pause. What has passed since may
        have been looked at too early: a timer fires up to a millisecond before its time, and the store was asked
        meanwhile.
        """
        now, due = self._clock.monotonic(), self._queues.next_due
        own = (due, self._note_by, self._endpoint.next_moment(began), self._requests.next_moment)
        later = None
        for moment in (*own, self._intake.next_moment, self._repeats.next_moment, self._backfill.next_moment):
            if moment is not None and moment > began and (later is None or moment < later):
                later = moment
        if later is not None and later <= now:
            return False
        if due is not None and due <= now:
            return False
        if later is not None:
            self._set_timer_to(later)
        return True

    def _is_timed(self) -> bool:
        """Whether the loop runs in time for the first retry."""
        due = self._queues.next_due
        return due is None or (self._timer is not None and self._timer_at <= due)

    def _set_timer_to(self, moment: float) -> None:
        """Run the loop at this moment at the latest."""
        if self._timer is None or moment < self._timer_at:
            self._stop_timer()
            self._timer_at = moment
            self._timer = self._clock.call_after(moment - self._clock.monotonic(), self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self._changed.set()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
