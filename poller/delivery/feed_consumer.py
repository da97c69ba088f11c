"""Feed consumer: one subscription reading one feed, from the stream to the sink.

It runs as long as the lease is held.

One loop, and a task for each attempt in flight. The loop opens the queues that are due, starts what may be sent, reads
more when there is room, and writes down what was settled; then it waits until something of that changes. What nothing
waits for is gathered for :data:`GATHER` while attempts are in flight: the faster they end, the more of them one write
carries. What that means for each entry, :mod:`poller.delivery.delivery_tracker` says.

**Invariants**

* A store that is unavailable for a moment ends nothing: what is in flight may end, and is written when the store is
  back, if the lease still holds.
* What the store has handed out arrives. A lost reply may have held entries, which the group keeps for us from then on;
  so after any failure the group is asked for what it holds before anything new. A group that is gone is made again, and
  entries that were read before are marked as known.
* Redeliveries and replays are looked for only on demand, and what is known here is not taken up a second time.
* Memory is bounded: :data:`WINDOW` fresh entries or :data:`WINDOW_BYTES`, as many of a replay, and the ids of
  :data:`MOST_PARKED` scheduled retries; beyond that nothing is read. A replay leaves half of these to new entries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Mapping, Sequence
from typing import Final, Literal, Protocol

import structlog

from poller.changes.events import MAX_EVENT_BYTES
from poller.clock import Clock, milliseconds_of
from poller.delivery.delivery_codec import Delivery, deliveries_of
from poller.delivery.delivery_tracker import DeliveryTracker
from poller.delivery.dispatcher import Dispatcher, EventSource
from poller.delivery.endpoint import EndpointState
from poller.delivery.filters import meets_baseline
from poller.errors import Fenced, GroupGone, StoreError, StoreUnavailable
from poller.failpoints import reach
from poller.store.consumer_state import Entry, Settlement
from poller.store.replay import ReplaySpan
from poller.store.stream import EntryId

_PAUSE: Final = 1.0  # seconds before a store that failed is asked again

_log = structlog.get_logger("poller.delivery")


class RepeatSource(Protocol):
    """Where it stands; see :class:`poller.store.consumer_state.ConsumerStore`."""

    async def parked(self) -> Mapping[str, bytes]:
        """The deliveries that wait."""
        ...

    async def parked_besides(self, known: Container[str]) -> Mapping[str, bytes]:
        """Those of them that are not known."""
        ...

    async def replay(self) -> ReplaySpan | None:
        """What is to be delivered once more."""
        ...

    async def past(self, span: ReplaySpan, *, most: int) -> Sequence[tuple[str, bytes]]:
        """The first entries of it."""
        ...


class RepeatReader:
    """That of one run of a feed consumer."""

    def __init__(
        self,
        tracker: DeliveryTracker,
        store: RepeatSource,
        *,
        window: int,
        where: Mapping[str, str],
        clock: Clock,
    ) -> None:
        """Nothing is known to be asked for.

        Args:
            tracker: take it up.
            store: of the feed consumer.
            window: how many entries of a replay are read together, and are here at most.
            where: feed and subscription, for the log.
            clock: the store's.
        """
        self._tracker = tracker
        self._store = store
        self._window = window
        self._where = where
        self._clock = clock
        self._asked = False
        self._not_before = clock.monotonic()

    def ask(self) -> None:
        """Learn that deliveries were scheduled elsewhere, or a replay was requested."""
        self._asked = True

    @property
    def next_moment(self) -> float | None:
        """When to ask again after a failure; None where nothing has failed, or it is over."""
        return self._not_before if self._not_before > self._clock.monotonic() else None

    async def load(self) -> None:
        """All that waits, at the beginning.

        Raises:
            StoreError: it cannot be read.
        """
        self._tracker.restore(_read(await self._store.parked()), now=self._clock.now(), clock=self._clock.monotonic())
        await self._follow()

    async def read_scheduled(self) -> None:
        """Deliveries scheduled by other processes meanwhile, once there was a notice of them.

        Raises:
            StoreError: it cannot be read.
        """
        if not self._asked or self.next_moment is not None:
            return
        self._asked = False
        try:
            kept = _read(await self._store.parked_besides(self._tracker.known))
            self._tracker.join(kept, now=self._clock.now(), clock=self._clock.monotonic())
            await self._follow()
        except StoreUnavailable as error:
            self._asked = True
            self._failed(error)

    async def read(self) -> bool:
        """Read the next events of a replay while there is room; whether any came.

        Raises:
            StoreRefused: the store does not do what it is asked.
        """
        span = self._tracker.replay.wants(self._window)
        if span is None or self.next_moment is not None:
            return False
        try:
            entries = await self._store.past(span, most=self._window)
        except StoreUnavailable as error:
            self._failed(error)
            return False
        self._tracker.replay.took(entries, most=self._window)
        self._tracker.take_again(entries)
        return True

    async def _follow(self) -> None:
        self._tracker.replay = self._tracker.replay.follows(await self._store.replay())

    def _failed(self, error: StoreUnavailable) -> None:
        _log.debug("not looked for what is asked for once more", **self._where, error=str(error))
        self._not_before = self._clock.monotonic() + _PAUSE


def _read(parked: Mapping[str, bytes]) -> Mapping[str, Delivery]:
    try:
        return deliveries_of(parked)
    except ValueError as error:  # another version's; to go on without would break the order of a record
        raise StoreError(f"what waits for its next attempt cannot be read: {error}") from None


class EntrySource(Protocol):
    """Where they come from; see :class:`poller.store.consumer_state.ConsumerStore`."""

    async def open(self, start: Literal["now", "earliest"]) -> None:
        """See to it that the group is there."""
        ...

    async def pending(self, after: str, *, most: int) -> list[Entry]:
        """Entries that the group holds."""
        ...

    async def read(self, *, most: int) -> list[Entry]:
        """Entries that the group has not read yet."""
        ...


class EntryReader:
    """The reading of one feed consumer, from the moment on that its lease was taken."""

    def __init__(self, store: EntrySource, start: Literal["now", "earliest"], *, feed: str, clock: Clock) -> None:
        """Nothing is read yet.

        Args:
            store: of the feed consumer.
            start: where a new group begins.
            feed: for the log.
            clock: the store's.
        """
        self.known_to = ""
        self._store = store
        self._start = start
        self._feed = feed
        self._clock = clock
        self._opened = False
        self._unread = True
        self._held_after: str | None = "0"
        self._last = ""
        self._not_before = clock.monotonic()

    def news(self) -> None:
        """There is something in the stream that was not there before."""
        self._unread = True

    @property
    def next_moment(self) -> float | None:
        """When to read again after a failure; None where nothing has failed, or it is over."""
        return self._not_before if self._unread and self._not_before > self._clock.monotonic() else None

    @property
    def wanted(self) -> bool:
        """Whether there may be something to read."""
        return self._unread and self._clock.monotonic() >= self._not_before

    async def read(self, most: int) -> Sequence[Entry]:
        """Some entries, in stream order; those up to ``known_to`` were given out before.

        A store that is away gives none; it is asked again a moment later.

        Raises:
            Fenced: the lease is another's.
            StoreRefused: the store does not do what it is asked.
        """
        self._unread = False  # a notice that arrives while the store answers counts
        try:
            entries = await self._some(most)
        except GroupGone as error:
            _log.warning("the consumer group is made again", feed=self._feed, error=str(error))
            self.known_to = self._last
            self._opened, self._held_after, self._unread = False, "0", True
            return ()
        except StoreUnavailable as error:
            _log.debug("not reading", feed=self._feed, error=str(error))  # the lease is lost soon, which is logged
            self._held_after = "0" if self.known_to else self._last or "0"
            self._not_before, self._unread = self._clock.monotonic() + _PAUSE, True
            return ()
        if entries:
            last = entries[-1][0]
            self._last = last if not self._last else max(self._last, last, key=EntryId.parse)
        return entries

    async def _some(self, most: int) -> list[Entry]:
        if not self._opened:
            await self._store.open(self._start)
            self._opened = True
        if self._held_after is not None:
            entries = await self._store.pending(self._held_after, most=most)
            self._held_after = entries[-1][0] if entries else None
            if entries:
                self._unread = True
                return entries
        entries = await self._store.read(most=most)
        if len(entries) == most:
            self._unread = True
        return entries


WINDOW: Final = 64
WINDOW_BYTES: Final = 4 * 1024 * 1024
MOST_PARKED: Final = 1000
LAST_WAIT: Final = 3.0  # seconds that requests in flight may still take after a stop
NOTE_COUNTS: Final = 2.0  # seconds between two notes of how many attempts there were, while there are any
GATHER: Final = 0.01  # seconds; what is sent again after a crash grows by what is delivered in them


class ConsumerStorage(EntrySource, EventSource, RepeatSource, Protocol):
    """What a feed consumer needs of the store; see :class:`poller.store.consumer_state.ConsumerStore`."""

    async def reset_entry(self) -> str | None:
        """The entry after which baselines tell nothing new."""
        ...

    async def settle(self, settlement: Settlement, *, now_ms: int) -> None:
        """Write down what became of entries."""
        ...


class FeedConsumer:
    """One subscription to one feed. :meth:`run` it as long as the lease is held."""

    def __init__(
        self,
        feed: str,
        endpoint: EndpointState,
        store: ConsumerStorage,
        *,
        clock: Clock,
    ) -> None:
        """Join them.

        Args:
            feed: ``SOURCE/NAME``.
            endpoint: the subscription.
            store: of this pair.
            clock: the store's.
        """
        self.feed = feed
        self._endpoint = endpoint
        self._subscription = endpoint.subscription
        self._store = store
        self._clock = clock
        batching = self._subscription.batching
        self._window = max(WINDOW, 4 * batching.max_events, 4 * self._subscription.concurrency)
        self._window_bytes = max(WINDOW_BYTES, 2 * (batching.max_bytes or 0))
        self._changed = asyncio.Event()
        self._stopping = False
        self._reset()

    def _reset(self) -> None:
        """Nothing of an earlier run counts: another process may have had the lease since."""
        self._tracker = DeliveryTracker(self._subscription)
        self._queues = self._tracker.queues
        self._intake = EntryReader(self._store, self._subscription.start, feed=self.feed, clock=self._clock)
        self._requests = Dispatcher(
            self._tracker,
            self._endpoint,
            self._store,
            feed=self.feed,
            changed=self._changed.set,
            clock=self._clock,
        )
        self._repeats = RepeatReader(
            self._tracker,
            self._store,
            window=self._window,
            where={"feed": self.feed, "subscription": self._subscription.id},
            clock=self._clock,
        )
        self._largest = MAX_EVENT_BYTES
        self._settle_by: float | None = None
        self._note_by: float | None = None
        self._resumed = 0

    def news(self) -> None:
        """There is something in the stream that was not there before."""
        self._intake.news()
        self._changed.set()

    def wake(self) -> None:
        """Something may have changed; look."""
        self._changed.set()

    def reload(self) -> None:
        """Learn that deliveries were scheduled elsewhere, or a replay was requested."""
        self._repeats.ask()
        self._changed.set()

    def ready(self) -> None:
        """Allow another run after a stop."""
        self._stopping = False

    def stop(self) -> None:
        """Start nothing more; :meth:`run` returns once what is in flight has ended, or soon."""
        self._stopping = True
        self._changed.set()

    async def run(self) -> None:
        """Deliver until stopped.

        Raises:
            Fenced: the lease is another's, or may be.
            StoreError: the store does not do what it is asked.
        """
        self._reset()
        self._endpoint.listen(self.wake)
        try:
            await self._repeats.load()
            while not self._stopping:
                self._changed.clear()
                self._resume()
                if not self._store.held:
                    await self._settle()
                    raise Fenced(f"the lease of {self.feed} was not renewed in time")
                await self._repeats.read_scheduled()
                self._requests.start()
                await self._read()
                await self._read_again()
                if not self._gathers():
                    await self._settle()
                await self._note_counts()
                await self._wait()
            await self._requests.finish(within=LAST_WAIT)
            await self._settle()
        finally:
            self._endpoint.leave(self.wake)
            await self._requests.cancel()

    def _resume(self) -> None:
        """Continue what waited for a pause of the sink that an operator has ended."""
        if self._resumed != self._endpoint.resumed:
            self._resumed = self._endpoint.resumed
            self._tracker.resume(self._resumed, clock=self._clock.monotonic())

    async def _read(self) -> None:
        most = self._room()
        if most <= 0 or not self._intake.wanted:
            return
        if self._queues.ready and most < self._window // 2:
            return  # many together cost little more than one
        entries = await self._intake.read(most)
        if entries or self._intake.wanted:
            self._changed.set()
        if not entries:
            return
        self._largest = max(1, *(len(event or b"") for _, event in entries))
        reset = await self._store.reset_entry() if meets_baseline(self._subscription, entries) else None
        now, known_to = self._clock.now(), self._intake.known_to
        refused = self._tracker.take_in(entries, now=now, known_to=known_to, reset_entry=reset)
        for entry, reason in refused:
            _log.warning(
                "not delivered", feed=self.feed, subscription=self._subscription.id, entry=entry, reason=reason
            )
        reach("delivery.read")

    async def _read_again(self) -> None:
        endpoint = self._endpoint
        if self._queues.parked >= MOST_PARKED // 2 or endpoint.resting or endpoint.breathing:
            return
        if await self._repeats.read():
            self._changed.set()

    def _room(self) -> int:
        """How many entries may be read now."""
        queues, endpoint = self._queues, self._endpoint
        if queues.parked >= MOST_PARKED or endpoint.resting or (endpoint.breathing and queues.fresh):
            return 0
        if queues.fresh_bytes >= self._window_bytes:
            return 0
        return min(self._window - queues.fresh, 1 + (self._window_bytes - queues.fresh_bytes) // self._largest)

    def _gathers(self) -> bool:
        """Whether to write later, and more together."""
        if not (self._requests.in_flight and self._tracker.patient) or self._requests.failed:
            self._settle_by = None
            return False
        if self._settle_by is None:
            self._settle_by = self._clock.monotonic() + GATHER
        return self._clock.monotonic() < self._settle_by

    async def _settle(self) -> None:
        """Write what is drafted; then let the queues go on."""
        await self._requests.note_pause()  # first: who takes over must not ask a sink that wants to be left alone
        draft, self._settle_by = self._tracker.next_batch(), None
        if draft:
            reach("delivery.settling")
            now_ms = milliseconds_of(self._clock.now())
            await self._store.settle(draft.settlement(self._tracker.place), now_ms=now_ms)
            reach("delivery.settled")
            if self._tracker.written(draft):
                self._changed.set()
        if self._requests.failed is not None:
            raise self._requests.failed

    async def _note_counts(self) -> None:
        """Have the counts of attempts stored soon after they changed, for status displays."""
        if not self._endpoint.uncounted(self.feed):
            self._note_by = None
        elif self._note_by is None:
            self._note_by = self._clock.monotonic() + NOTE_COUNTS
        elif self._clock.monotonic() >= self._note_by:
            self._note_by = None
            await self._endpoint.store_health(self.feed)

    async def _wait(self) -> None:
        queues, now = self._queues, self._clock.monotonic()
        others = (self._endpoint, self._intake, self._requests, self._repeats)
        moments = (queues.next_due, self._settle_by, self._note_by, *(one.next_moment for one in others))
        # What has passed waits for something else: a free place, or the end of a pause.
        later = min((moment for moment in moments if moment is not None and moment > now), default=None)
        if any(moment is not None and moment <= now for moment in (queues.next_due, self._settle_by)):
            return
        if later is None:
            await self._changed.wait()
        else:
            await self._clock.wait(self._changed, later - now)
