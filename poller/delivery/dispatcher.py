"""Dispatcher: starts the attempts of one feed consumer, and hands their outcomes to the tracker.

**Invariants**

* Each attempt in flight is one task. Its outcome goes to the tracker without an await in between, so two attempts that
  end at the same time are handled one after the other.
* An attempt survives a short unavailability of the store.
* Each attempt at each event is one log event and one count. Successful deliveries are counted and logged at level
  ``debug``, so they cost microseconds here. No text of the sink becomes a label.
* The trace of an attempt links to those of its events and is no child of them: an event is sent to many sinks, for
  days, and again on demand. Each attempt sends the context of its own span to the sink.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, Protocol

import structlog

from poller.clock import Clock
from poller.delivery.cloudevent import Envelope, Event
from poller.delivery.delivery_tracker import GONE, AttemptReport, AttemptResult, DeliveryTracker
from poller.delivery.endpoint import EndpointState
from poller.delivery.key_queues import QueuedEntry
from poller.delivery.retry import PAUSE_FLOOR, DeadLetter, Delivered, PauseSink, PauseSubscription, Retry, Withhold
from poller.delivery.retry import Step as Next
from poller.delivery.sinks.base import NOT_PERMITTED, Outcome, OutcomeKind, SinkEvent
from poller.errors import StoreUnavailable
from poller.failpoints import reach
from poller.lifecycle import ended
from poller.store.backfill import is_backfilled
from poller.telemetry import tracing
from poller.telemetry.metrics import AttemptSeries, Step, attempts_of
from poller.telemetry.tracing import Link, Span, SpanScope, record_response

_log = structlog.get_logger("poller.delivery")
_spoken = logging.getLogger("poller.delivery")  # structlog's output; reading its level is cheap

STEPS: Final[Mapping[type[Next], Step]] = {
    Delivered: "delivered",
    Retry: "retried",
    PauseSink: "sink_paused",
    DeadLetter: "dead_letter",
    PauseSubscription: "subscription_paused",
    Withhold: "withheld",
}
"""The names of steps in logs and metrics."""

_DETAILS: Final = (Delivered, Withhold)


def count(reports: Sequence[AttemptReport], outcome: Outcome | None, series: AttemptSeries, *, now: datetime) -> None:
    """Count the events of one request; ``outcome``: None: nothing could be sent."""
    if outcome is not None and outcome.was_sent:
        series.requested(outcome.seconds)
    counts: dict[type[Next], int] = {}
    for one in reports:
        kind = type(one.step)
        counts[kind] = counts.get(kind, 0) + 1
        if kind is Delivered and (delay := _delay(one, now)) is not None:
            series.delayed(delay)
    for kind, events in counts.items():  # a batch may hold hundreds of events
        series.attempted(STEPS[kind], events)


def report(
    reports: Sequence[AttemptReport], outcome: Outcome | None, *, feed: str, subscription: str, sink: str, now: datetime
) -> None:
    """Log the events of one request.

    Args:
        reports: the events, each with its step.
        outcome: of the request; None: nothing could be sent.
        feed: ``SOURCE/NAME``.
        subscription: its id.
        sink: its host.
        now: when it ended, UTC.
    """
    if not _spoken.isEnabledFor(logging.DEBUG):
        reports = [one for one in reports if not isinstance(one.step, _DETAILS)]
        if not reports:
            return
    shared: dict[str, Any] = {"feed": feed, "subscription": subscription, "sink": sink}
    if outcome:
        answered = {"status": outcome.status, "failure": outcome.failure, "seconds": round(outcome.seconds, 3)}
        shared |= {name: value for name, value in answered.items() if value is not None}
    for one in reports:
        log = _log.bind(step=STEPS[type(one.step)], **shared, **_of(one, now))
        if isinstance(one.step, Delivered):
            log.debug("attempt")
        elif isinstance(one.step, Withhold):
            log.debug("attempt", error=outcome.error if outcome else None)
        elif isinstance(one.step, DeadLetter | PauseSubscription):
            log.error("attempt", reason=one.step.reason)
        else:
            log.warning("attempt", error=outcome.error if outcome else None)


def _of(one: AttemptReport, now: datetime) -> dict[str, Any]:
    fields: dict[str, Any] = {"id": one.event, "entry": one.entry, "attempt": one.attempt, "bytes": one.size}
    delay = _delay(one, now)
    if delay is not None:
        fields["delay_seconds"] = round(delay, 3)
    if isinstance(one.step, Retry | PauseSink):
        fields["next_seconds"] = round(one.step.after.total_seconds(), 3)
    if isinstance(one.step, PauseSink):
        fields["pause_seconds"] = round(one.step.pause.total_seconds(), 3)
    return fields


def _delay(one: AttemptReport, now: datetime) -> float | None:
    """Seconds since the event was published; at least 0, because clocks differ."""
    if one.recorded is None:
        return None
    try:
        return max((now - datetime.fromisoformat(one.recorded)).total_seconds(), 0.0)
    except (ValueError, TypeError):  # written by another program, or without a zone
        return None


_AGAIN: Final = 1.0  # seconds between attempts while the store is unavailable


class EventSource(Protocol):
    """The part of :class:`poller.store.consumer_state.ConsumerStore` that attempts need."""

    @property
    def held(self) -> bool:
        """Whether this process certainly has the lease."""
        ...

    async def fetch(self, entries: Sequence[str]) -> Mapping[str, bytes]:
        """The events of entries."""
        ...


class Dispatcher:
    """The attempts of one run of a feed consumer."""

    def __init__(
        self,
        tracker: DeliveryTracker,
        endpoint: EndpointState,
        store: EventSource,
        *,
        feed: str,
        changed: Callable[[], None],
        clock: Clock,
    ) -> None:
        """Begin without attempts.

        Args:
            tracker: decides what may be sent.
            endpoint: of the subscription.
            store: of the feed consumer.
            feed: ``SOURCE/NAME``, for the log.
            changed: is called when an attempt has ended.
            clock: the store's.
        """
        self.failed: BaseException | None = None
        self._tracker = tracker
        self._queues = tracker.queues
        self._endpoint = endpoint
        self._store = store
        self._changed = changed
        self._clock = clock
        self._feed = feed
        self._where = {"feed": feed, "subscription": endpoint.subscription.id}
        self._series = attempts_of(endpoint.subscription.id)
        self._batching = endpoint.subscription.batching
        self._linger = self._batching.linger.total_seconds()
        # The brackets of a batch and its commas, one less than it has events.
        self._most_bytes = self._batching.max_bytes and self._batching.max_bytes - 1
        self._in_flight: set[asyncio.Task[None]] = set()
        self._linger_until: float | None = None

    @property
    def next_moment(self) -> float | None:
        """When the batch that is being gathered is sent."""
        return self._linger_until

    def start(self) -> None:
        """Start all attempts that are permitted now."""
        endpoint = self._endpoint
        self._queues.wake(self._clock.monotonic())
        while self._queues.ready and endpoint.free and self._gathered():
            if endpoint.breathing and not self._queues.due:
                return
            fresh = not self._queues.due
            unit = self._queues.claim(most=self._batching.max_events, most_bytes=self._most_bytes)
            endpoint.acquire(fresh=fresh)
            task = asyncio.create_task(self._attempt(unit))
            self._in_flight.add(task)
            task.add_done_callback(self._ended)

    async def finish(self, *, within: float) -> None:
        """Let attempts in flight end, for at most this many seconds."""
        if self._in_flight:
            await asyncio.wait(self._in_flight, timeout=within)
        await self.cancel()

    async def cancel(self) -> None:
        """Cancel the attempts in flight; their outcomes stay unknown."""
        await ended(*self._in_flight)

    async def note_pause(self) -> None:
        """Store a pause that the sink has requested, for other processes."""
        try:
            await self._endpoint.store_pause()
        except StoreUnavailable as error:
            _log.debug("not noted", **self._where, error=str(error))

    def _ended(self, attempt: asyncio.Task[None]) -> None:
        self._in_flight.discard(attempt)
        self._endpoint.release()
        if not attempt.cancelled() and (error := attempt.exception()):
            self.failed = error
        self._changed()

    def _gathered(self) -> bool:
        """Whether to send the batch now; False: wait a little for more events."""
        if self._linger and not self._queues.gathered(self._batching.max_events, self._most_bytes):
            if self._linger_until is None:
                self._linger_until = self._clock.monotonic() + self._linger
            if self._clock.monotonic() < self._linger_until:
                return False
        self._linger_until = None
        return True

    async def _attempt(self, unit: list[QueuedEntry[Event]]) -> None:
        if erased := self._tracker.erased_of(unit):
            self._drop(unit, erased, "the record was erased")
            return
        absent = [waiting for waiting in unit if waiting.item is None]
        if absent and not await self._fetched(unit, absent):
            return
        batch = [SinkEvent(*one.item, self._tracker.repeat_of(one)) for one in unit if one.item]
        allowed = partial(self._may_send, unit)
        if not await self._endpoint.turn(allowed=allowed):
            self._tracker.put_back(unit)
            return
        with attempt_at(batch, **self._where) as span:
            outcome = await self._endpoint.send(batch, allowed=allowed)
            if outcome is NOT_PERMITTED:
                self._tracker.put_back(unit)
                return
            concluded, now = self._concluded(unit, outcome)
            trace_attempt(span, concluded.reports, outcome)
            self._report(concluded, outcome, now)
        await self._learn(concluded, outcome, now)

    def _may_send(self, unit: Sequence[QueuedEntry[Event]]) -> bool:
        return self._store.held and not self._tracker.erased_of(unit)

    def _concluded(self, unit: list[QueuedEntry[Event]], outcome: Outcome) -> tuple[AttemptResult, datetime]:
        """The result of an attempt that ends now, and this moment, UTC."""
        reach("delivery.answered")
        clock, now = self._clock, self._clock.now()
        busy = PAUSE_FLOOR if outcome.is_delivered else self._endpoint.pause_left
        concluded = self._tracker.conclude(
            unit, outcome, now=now, clock=clock.monotonic(), chance=clock.random.random, busy=busy
        )
        if concluded.pause and not outcome.is_unexplained:  # else this process has paused it already
            self._endpoint.pause(concluded.pause)
        return concluded, now

    async def _learn(self, concluded: AttemptResult, outcome: Outcome, now: datetime) -> None:
        try:
            if concluded.rest is not None:
                await self._endpoint.rest("sink", concluded.rest)
            # Without the lease, another process delivers the feed, and knows better how its sink is.
            if self._store.held and (storing := self._endpoint.learn(self._feed, outcome, now)) is not None:
                await storing
        except StoreUnavailable as error:  # the next outcome tries again
            _log.debug("not noted", **self._where, error=str(error))

    async def _fetched(self, unit: list[QueuedEntry[Event]], absent: list[QueuedEntry[Event]]) -> bool:
        """Fetch the events of these entries of a unit.

        False: the unit is not sent now. The store is unavailable, or an event is gone or not wanted any more; that one
        was settled here, and the others were put back.
        """
        try:
            in_stream = [waiting.id for waiting in absent if not is_backfilled(waiting.id)]
            found = await self._store.fetch(in_stream) if in_stream else {}
        except StoreUnavailable as error:
            _log.debug("not sent", **self._where, error=str(error))  # an unavailable store is logged once for all
            self._tracker.postpone(unit, self._clock.monotonic() + _AGAIN)
            return False
        lost, unwanted = list[QueuedEntry[Event]](), list[QueuedEntry[Event]]()
        for waiting in absent:
            try:
                if not self._tracker.load(waiting, found.get(waiting.id, b"")):
                    unwanted.append(waiting)
            except ValueError:  # no event stands there now
                lost.append(waiting)
        if not lost and not unwanted:
            return True
        now = self._clock.now()
        if lost:
            self._report(self._tracker.give_up(lost, GONE, now=now), None, now)
        self._drop(unit, unwanted, "the settings do not choose them any more", besides=lost)
        return False

    def _drop(
        self,
        unit: Sequence[QueuedEntry[Event]],
        unwanted: Sequence[QueuedEntry[Event]],
        reason: str,
        *,
        besides: Sequence[QueuedEntry[Event]] = (),
    ) -> None:
        """Settle entries of a unit that are not sent, and put back those of other records."""
        if unwanted:
            entries = [waiting.id for waiting in unwanted]
            _log.debug("not sent", **self._where, entries=entries, reason=reason)
            self._tracker.drop(unwanted, now=self._clock.now())
        shut = {waiting.key for waiting in (*besides, *unwanted)}
        self._tracker.put_back([waiting for waiting in unit if waiting.key not in shut])

    def _report(self, concluded: AttemptResult, outcome: Outcome | None, now: datetime) -> None:
        count(concluded.reports, outcome, self._series, now=now)
        report(concluded.reports, outcome, **self._where, sink=self._endpoint.subscription.sink, now=now)


def attempt_at(events: Sequence[SinkEvent], *, feed: str, subscription: str) -> Span:
    """The span of one attempt with these events."""
    if not tracing.on():
        return tracing.NOTHING
    words: dict[str, str | int] = {"poller.subscription": subscription, "poller.feed": feed}
    words["poller.events"] = len(events)
    if len(events) == 1:
        words["poller.event.id"] = events[0].envelope.id
    links = [_link(event.envelope) for event in events]
    return tracing.root("deliver", kind=SpanScope.CLIENT, attributes=words, links=links)


def trace_attempt(span: Span, reports: Sequence[AttemptReport], outcome: Outcome) -> None:
    """Add outcome and steps to the span."""
    if span is tracing.NOTHING or not reports:
        return
    steps = dict.fromkeys(type(one.step).__name__.lower() for one in reports)
    span.set_attributes({"poller.attempt": max(one.attempt for one in reports), "poller.step": ",".join(steps)})
    if outcome.kind is OutcomeKind.REJECTED and not outcome.was_sent:
        span.fail("not_sent")
    elif outcome.status is not None or not outcome.is_delivered:
        record_response(span, outcome.status, text=outcome.error, failure=outcome.failure)


def _link(envelope: Envelope) -> Link:
    carried = {"traceparent": envelope.traceparent or ""}
    if envelope.tracestate:
        carried["tracestate"] = envelope.tracestate
    return carried, {"poller.event.id": envelope.id}
