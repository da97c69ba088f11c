"""One subscription to one feed: from the stream to the sink, until the lease is lost or somebody stops it.

Theory of operation
-------------------
One loop, and a task for each request in flight. The loop wakes the lanes that are due, starts what may be sent, reads
more when there is room, and writes down what has been settled; then it waits until something of that has changed. All
that was settled meanwhile is written at once, and what nothing waits for is gathered for :data:`GATHER` while requests
are in flight: so the faster attempts end, the more of them one write carries. What that means for each entry,
:mod:`poller.delivery.books` says.

A store that is away for a moment ends nothing: what is in flight may end, and is written when the store is back. That
goes on for as long as the lease lasts.

Memory is bounded: :data:`WINDOW` fresh entries or :data:`WINDOW_BYTES`, as many of a replay, ids of
:data:`MOST_PARKED` parked ones; beyond that nothing is read. A replay leaves half of these to what is new.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Final, Protocol

import structlog

from poller.changes.events import MAX_EVENT_BYTES
from poller.delivery.books import Books
from poller.delivery.intake import Entries, Intake
from poller.delivery.once_more import Asked, OnceMore
from poller.delivery.requests import Parked, Requests
from poller.delivery.subscriber import Subscriber
from poller.delivery.wanting import meets_baseline
from poller.errors import Fenced
from poller.failpoints import reach
from poller.store.deliveries import Settlement

WINDOW: Final = 64
WINDOW_BYTES: Final = 4 * 1024 * 1024
MOST_PARKED: Final = 1000
LAST_WAIT: Final = 3.0  # seconds that requests in flight may still take when told to stop
NOTE_COUNTS: Final = 2.0  # seconds between two notes of how many attempts there were, while there are any
GATHER: Final = 0.01  # seconds; what is sent again after a crash grows by what is delivered in them

_log = structlog.get_logger("poller.delivery")


class Deliveries(Entries, Parked, Asked, Protocol):
    """What a pair needs of the store; see :class:`poller.store.deliveries.PairStore`."""

    async def anew(self) -> str | None:
        """The entry after which baselines tell nothing new."""
        ...

    async def settle(self, settlement: Settlement, *, now_ms: int) -> None:
        """Write down what became of entries."""
        ...


class Pair:
    """One subscription to one feed. :meth:`run` it as long as the lease is held."""

    def __init__(
        self,
        feed: str,
        subscriber: Subscriber,
        store: Deliveries,
        *,
        now: Callable[[], datetime],
        clock: Callable[[], float],
        chance: Callable[[], float],
    ) -> None:
        """Join them.

        Args:
            feed: ``SOURCE/NAME``.
            subscriber: the subscription.
            store: of this pair.
            now: the store's clock, UTC.
            clock: seconds that only go forward; the loop's.
            chance: draws from [0, 1), for jitter.
        """
        self.feed = feed
        self._subscriber = subscriber
        self._subscription = subscriber.subscription
        self._store = store
        self._now = now
        self._clock = clock
        self._chance = chance
        batching = self._subscription.batching
        self._window = max(WINDOW, 4 * batching.max_events, 4 * self._subscription.concurrency)
        self._window_bytes = max(WINDOW_BYTES, 2 * (batching.max_bytes or 0))
        self._changed = asyncio.Event()
        self._stopping = False
        self._begin()

    def _begin(self) -> None:
        """Nothing of an earlier run counts: another process may have had the lease since."""
        self._books = Books(self._subscription)
        self._lanes = self._books.lanes
        self._intake = Intake(self._store, self._subscription.start, feed=self.feed, clock=self._clock)
        self._requests = Requests(
            self._books,
            self._subscriber,
            self._store,
            feed=self.feed,
            changed=self._changed.set,
            now=self._now,
            clock=self._clock,
            chance=self._chance,
        )
        self._once_more = OnceMore(
            self._books,
            self._store,
            window=self._window,
            where={"feed": self.feed, "subscription": self._subscription.id},
            now=self._now,
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

    def look(self) -> None:
        """Something may have changed; look."""
        self._changed.set()

    def reload(self) -> None:
        """Somebody has parked deliveries, or asked for a replay."""
        self._once_more.ask()
        self._changed.set()

    def ready(self) -> None:
        """It is to be run anew, though it was told to stop before."""
        self._stopping = False

    def stop(self) -> None:
        """Start nothing more; :meth:`run` returns once what is in flight has ended, or soon."""
        self._stopping = True
        self._changed.set()

    async def run(self) -> None:
        """Deliver until told to stop.

        Raises:
            Fenced: the lease is another's, or may be.
            StoreError: the store does not do what it is asked.
        """
        self._begin()
        self._subscriber.listen(self.look)
        try:
            await self._once_more.load()
            while not self._stopping:
                self._changed.clear()
                self._resume()
                if not self._store.held:
                    await self._settle()
                    raise Fenced(f"the lease of {self.feed} was not renewed in time")
                await self._once_more.look()
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
            self._subscriber.leave(self.look)
            await self._requests.end()

    def _resume(self) -> None:
        """What waited for the end of a pause of the sink goes on, where an operator has ended that."""
        if self._resumed != self._subscriber.resumed:
            self._resumed = self._subscriber.resumed
            self._books.resume(self._resumed, clock=self._clock())

    async def _read(self) -> None:
        most = self._room()
        if most <= 0 or not self._intake.wanted:
            return
        if self._lanes.ready and most < self._window // 2:
            return  # many at once cost little more than one
        entries = await self._intake.read(most)
        if entries or self._intake.wanted:
            self._changed.set()
        if not entries:
            return
        self._largest = max(1, *(len(event or b"") for _, event in entries))
        anew = await self._store.anew() if meets_baseline(self._subscription, entries) else None
        refused = self._books.take_in(entries, now=self._now(), known_to=self._intake.known_to, anew=anew)
        for entry, reason in refused:
            _log.warning(
                "not delivered", feed=self.feed, subscription=self._subscription.id, entry=entry, reason=reason
            )
        reach("delivery.read")

    async def _read_again(self) -> None:
        subscriber = self._subscriber
        if self._lanes.parked >= MOST_PARKED // 2 or subscriber.resting or subscriber.breathing:
            return
        if await self._once_more.read():
            self._changed.set()

    def _room(self) -> int:
        """How many entries may be read now."""
        lanes, subscriber = self._lanes, self._subscriber
        if lanes.parked >= MOST_PARKED or subscriber.resting or (subscriber.breathing and lanes.fresh):
            return 0
        if lanes.fresh_bytes >= self._window_bytes:
            return 0
        return min(self._window - lanes.fresh, 1 + (self._window_bytes - lanes.fresh_bytes) // self._largest)

    def _gathers(self) -> bool:
        """Whether to write later, and more at once."""
        if not (self._requests.in_flight and self._books.patient) or self._requests.failed:
            self._settle_by = None
            return False
        if self._settle_by is None:
            self._settle_by = self._clock() + GATHER
        return self._clock() < self._settle_by

    async def _settle(self) -> None:
        """Write what is drafted; then let the lanes go on."""
        await self._requests.note_pause()  # first: who takes over must not ask a sink that wants to be left alone
        draft, self._settle_by = self._books.drafted(), None
        if draft:
            reach("delivery.settling")
            now_ms = int(self._now().timestamp() * 1000)
            await self._store.settle(draft.settlement(self._books.place), now_ms=now_ms)
            reach("delivery.settled")
            if self._books.written(draft):
                self._changed.set()
        if self._requests.failed is not None:
            raise self._requests.failed

    async def _note_counts(self) -> None:
        """Have the counts of attempts written down soon after they moved, for whoever shows them."""
        if not self._subscriber.uncounted(self.feed):
            self._note_by = None
        elif self._note_by is None:
            self._note_by = self._clock() + NOTE_COUNTS
        elif self._clock() >= self._note_by:
            self._note_by = None
            await self._subscriber.note(self.feed)

    async def _wait(self) -> None:
        lanes, now = self._lanes, self._clock()
        others = (self._subscriber, self._intake, self._requests, self._once_more)
        moments = (lanes.next_due, self._settle_by, self._note_by, *(one.next_moment for one in others))
        # What has passed waits for something else: a free place, or the end of a pause.
        later = min((moment for moment in moments if moment is not None and moment > now), default=None)
        if any(moment is not None and moment <= now for moment in (lanes.next_due, self._settle_by)):
            return
        with suppress(TimeoutError):
            async with asyncio.timeout_at(later):
                await self._changed.wait()
