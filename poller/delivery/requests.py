"""The requests of one subscription to one feed: what is started when, and what is learnt when one has ended.

A task for each request in flight. Whatever one learns goes into the books at once, without a wait in between; so two
that end in the same instant come one after the other. A store that is away for a moment costs an attempt nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final, Protocol

import structlog

from poller.delivery.attempts import is_unexplained
from poller.delivery.books import GONE, Books
from poller.delivery.drafting import Conclusion
from poller.delivery.envelope import envelope_of
from poller.delivery.lanes import Waiting
from poller.delivery.outcome import Outcome
from poller.delivery.reporting import count, report
from poller.delivery.subscriber import Subscriber
from poller.delivery.subscription import Event
from poller.delivery.traced import attempt_at, tell_attempt
from poller.errors import StoreUnavailable
from poller.failpoints import reach
from poller.stopping import ended
from poller.telemetry.attempts import attempts_of

_AGAIN: Final = 1.0  # seconds before a store that failed is asked again

_log = structlog.get_logger("poller.delivery")


class Parked(Protocol):
    """What requests need of the store; see :class:`poller.store.deliveries.PairStore`."""

    @property
    def held(self) -> bool:
        """Whether the lease is ours beyond doubt."""
        ...

    async def fetch(self, entries: Sequence[str]) -> Mapping[str, bytes]:
        """The events of entries."""
        ...


class Requests:
    """Those of one run of a pair."""

    def __init__(
        self,
        books: Books,
        subscriber: Subscriber,
        store: Parked,
        *,
        feed: str,
        changed: Callable[[], None],
        now: Callable[[], datetime],
        clock: Callable[[], float],
        chance: Callable[[], float],
    ) -> None:
        """Nothing is in flight.

        Args:
            books: say what may be sent.
            subscriber: the subscription.
            store: of the pair.
            feed: ``SOURCE/NAME``, for the log.
            changed: is called when one has ended.
            now: the store's clock, UTC.
            clock: seconds that only go forward; the loop's.
            chance: draws from [0, 1), for jitter.
        """
        self.failed: BaseException | None = None
        self._books = books
        self._lanes = books.lanes
        self._subscriber = subscriber
        self._store = store
        self._changed = changed
        self._now = now
        self._clock = clock
        self._chance = chance
        self._feed = feed
        self._where = {"feed": feed, "subscription": subscriber.subscription.id}
        self._series = attempts_of(subscriber.subscription.id)
        self._batching = subscriber.subscription.batching
        # The brackets around a batch and its commas, one less than it has events.
        self._most_bytes = self._batching.max_bytes and self._batching.max_bytes - 1
        self._in_flight: set[asyncio.Task[None]] = set()
        self._linger_until: float | None = None
        self._until: datetime | None = None

    @property
    def next_moment(self) -> float | None:
        """When what gathers now is sent."""
        return self._linger_until

    @property
    def in_flight(self) -> bool:
        """Whether any have not ended."""
        return bool(self._in_flight)

    def start(self) -> None:
        """Start all that may be sent now."""
        subscriber = self._subscriber
        self._lanes.wake(self._clock())
        while self._lanes.ready and subscriber.free and self._gathered():
            if subscriber.breathing and not self._lanes.due:
                return
            fresh = not self._lanes.due
            unit = self._lanes.take(most=self._batching.max_events, most_bytes=self._most_bytes)
            subscriber.begin(fresh=fresh)
            task = asyncio.create_task(self._attempt(unit))
            self._in_flight.add(task)
            task.add_done_callback(self._ended)

    async def finish(self, *, within: float) -> None:
        """Let those in flight end, for so many seconds."""
        if self._in_flight:
            await asyncio.wait(self._in_flight, timeout=within)
        await self.end()

    async def end(self) -> None:
        """End those in flight; what they would have learnt is not known."""
        await ended(*self._in_flight)

    async def note_pause(self) -> None:
        """Write down what the sink has asked for, so that others leave it alone, too."""
        noting = self._until
        if noting is None:
            return
        if not self._subscriber.is_paused:  # it is over, or an operator has ended it
            self._until = None
            return
        try:
            await self._subscriber.paused(noting)
        except StoreUnavailable as error:
            _log.debug("not noted", **self._where, error=str(error))
        else:
            self._until = None if self._until == noting else self._until

    def _ended(self, attempt: asyncio.Task[None]) -> None:
        self._in_flight.discard(attempt)
        self._subscriber.end()
        if not attempt.cancelled() and (error := attempt.exception()):
            self.failed = error
        self._changed()

    def _gathered(self) -> bool:
        """Whether to send what there is, or to wait a little for more."""
        linger = self._batching.linger.total_seconds()
        if linger and not self._lanes.gathered(self._batching.max_events, self._most_bytes):
            if self._linger_until is None:
                self._linger_until = self._clock() + linger
            if self._clock() < self._linger_until:
                return False
        self._linger_until = None
        return True

    async def _attempt(self, unit: list[Waiting[Event]]) -> None:
        try:
            events = await self._events(unit)
        except StoreUnavailable as error:
            _log.debug("not sent", **self._where, error=str(error))  # that the store is away is told once for all
            self._books.postpone(unit, self._clock() + _AGAIN)
            return
        if events is None:
            return
        if not await self._subscriber.turn(allowed=lambda: self._store.held):
            self._books.put_back(unit)
            return
        with attempt_at(events, **self._where) as span:
            outcome, concluded = await self._sent(unit, events)
            tell_attempt(span, concluded.told, outcome)
            self._report(concluded, outcome)
        if outcome is not None:
            await self._learn(concluded, outcome)

    async def _sent(self, unit: list[Waiting[Event]], events: list[Event]) -> tuple[Outcome | None, Conclusion]:
        """How one attempt ended, and what follows; no outcome where nothing could be sent."""
        try:
            outcome = await self._subscriber.send(events)
        except ValueError as error:
            return None, self._books.give_up(unit, str(error), now=self._now())
        reach("delivery.answered")
        now, clock, busy = self._now(), self._clock(), self._subscriber.pause_left
        concluded = self._books.conclude(unit, outcome, now=now, clock=clock, chance=self._chance, busy=busy)
        if concluded.pause and not is_unexplained(outcome, now):  # else it is paused already, by this process alone
            self._until = self._subscriber.pause(concluded.pause)
        return outcome, concluded

    async def _learn(self, concluded: Conclusion, outcome: Outcome) -> None:
        self._changed()
        try:
            if concluded.rest:
                await self._subscriber.rest("sink", concluded.rest)
            await self._subscriber.learn(self._feed, outcome)
        except StoreUnavailable as error:  # the next attempt brings it up again
            _log.debug("not noted", **self._where, error=str(error))

    async def _events(self, unit: list[Waiting[Event]]) -> list[Event] | None:
        """Their events, fetched where need be; None where one is gone, which is settled here."""
        absent = [waiting for waiting in unit if waiting.item is None]
        found = await self._store.fetch([waiting.id for waiting in absent]) if absent else {}
        for waiting in absent:
            with suppress(ValueError):  # no event stands there now
                event = self._books.event_of(waiting.id) or found.get(waiting.id, b"")
                waiting.item = (envelope_of(event), event)
        lost = [waiting for waiting in unit if waiting.item is None]
        if not lost:
            return [waiting.item for waiting in unit if waiting.item is not None]
        self._report(self._books.give_up(lost, GONE, now=self._now()), None)
        shut = {waiting.key for waiting in lost}
        self._books.put_back([waiting for waiting in unit if waiting.key not in shut])
        return None

    def _report(self, concluded: Conclusion, outcome: Outcome | None) -> None:
        now = self._now()
        count(concluded.told, outcome, self._series, now=now)
        report(concluded.told, outcome, **self._where, sink=self._subscriber.subscription.sink, now=now)
