"""State of one endpoint in this process, shared by all feeds of its subscription.

An endpoint limits attempts in flight and per second. If the sink refuses because of its load, the rate that it accepts
is measured (:mod:`poller.limits`). The endpoint is *paused* during a ``Retry-After``, *ailing* after many failures in a
row, and *resting* while its subscription is paused. If a signing secret or a credential is *missing*, all attempts
wait, and one attempt per :data:`CREDENTIAL_WAIT` checks whether it is back. That counts as failing, but not for
``disable_after``, because the sink is not at fault. The log has a line at the beginning, one a minute, and one at the
end.

An ailing sink gets retries when they are due, but new events only after a *breath*, whose length doubles. So a dead
sink costs little, nearly all events stay unread in the stream, and its recovery is noticed within
:data:`LONGEST_BREATH`. The first success ends this state.

**Invariants**

* No attempt starts while the endpoint is paused, whichever feed it is for.
* Feeds take turns: a free slot is offered first to each of them in rotation.
* A sink that hangs takes no connection from others: all endpoints of a process share its descriptors evenly.
* If several processes share the feeds, each uses the part of slots and rate that corresponds to its feeds.
* While a credential is missing, no attempt starts between two checks, and attempts that started before are not sent.
* An attempt that was sent before the credential was missing does not end that state.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Final, Literal, Protocol

import structlog

from poller.clock import Clock
from poller.delivery.endpoint_health import EndpointHealth, Health
from poller.delivery.filters import Subscription
from poller.delivery.retry import CREDENTIAL_WAIT
from poller.delivery.sinks.base import NOT_PERMITTED, Outcome, OutcomeKind, Sink, SinkEvent, always
from poller.limits import WHOLE, AdaptiveRate, RateLimiter, part_of

MANY_FAILURES: Final = 20
LOOK_AGAIN: Final = 0.1  # seconds; the adaptive rate rises during a wait
FIRST_BREATH: Final = 0.5
LONGEST_BREATH: Final = 5.0
REST_AGAIN: Final = 1.0  # seconds until the next attempt at a sink that wants no more, if that could not be stored
_ADVICE: Final = "nothing is lost; it is tried again every few seconds, and all goes out when it can be had"
_RATE_ADVICE: Final = "the sink answers 429; set rate of the subscription to what it allows, or let it send Retry-After"
_DOUBLINGS: Final = 8

_log = structlog.get_logger("poller.delivery")


class EndpointNotes(Protocol):
    """Stores the endpoint's state for other processes and restarts."""

    async def until(self, subscription: str, moment: datetime) -> None:
        """Store a pause requested by the sink."""
        ...

    async def health(self, subscription: str, feed: str, health: Health) -> None:
        """Store the health at a feed."""
        ...

    async def healths(self, subscription: str) -> Mapping[str, Health]:
        """The stored health of all feeds, from all processes."""
        ...

    async def rest(self, subscription: str, *, by: Literal["sink", "failures"], reason: str, at: datetime) -> None:
        """Pause the subscription until an operator resumes it, and announce it."""
        ...

    async def recovered(self, subscription: str, at: datetime) -> None:
        """Store that the sink accepts events again; one process announces it."""
        ...


class EndpointState:
    """The limits and the state of one subscription's endpoint.

    Attributes:
        resting: whether the subscription is paused here, because of its sink or of failures.
        is_pause_stored: whether that pause was stored.
    """

    def __init__(
        self,
        subscription: Subscription,
        sink: Sink,
        notes: EndpointNotes,
        *,
        unwell: bool = False,
        paused_until: datetime | None,
        clock: Clock,
    ) -> None:
        """Begin with the stored state.

        Args:
            subscription: of the endpoint.
            sink: sends the requests.
            notes: stores the state.
            unwell: whether nothing has succeeded since failures disabled the subscription.
            paused_until: the stored pause.
            clock: the store's.
        """
        self.subscription = subscription
        self._where = {"subscription": subscription.id, "sink": subscription.sink}
        self.resting = self.is_pause_stored = False
        self._sink = sink
        self._notes = notes
        self._standing = EndpointHealth(subscription.disable_after, longest=subscription.patience.widest)
        self._credential = CredentialOutage()
        self._unwell = unwell
        self._failed_in_a_row = 0
        self._clock = clock
        self._most = self._free = self._bound = subscription.concurrency
        self._part = WHOLE
        self._pace = RateLimiter(subscription.rate)
        self._throttle = AdaptiveRate()
        self._throttled = asyncio.Lock()
        self._noting = asyncio.Lock()
        self._tell_rate = clock.monotonic()
        self._paused_until = self._breath_until = clock.monotonic()
        self._asked_until = self._paused_until  # as the sink has requested
        self._unstored: float | None = None  # the end of a requested pause that the store may not have
        if paused_until:
            self._begin_pause(paused_until - clock.now())
        self._listeners: deque[Callable[[], None]] = deque()

    def share(self, part: Fraction) -> None:
        """Use this part of the limits; other processes have the rest."""
        self._part = part
        self._pace.change(part)
        self._resize()

    @property
    def wanted(self) -> int:
        """The connections of its configuration."""
        return self.subscription.concurrency

    def bound(self, most: int) -> None:
        """Use at most this number of connections, whatever the part."""
        if most != self._bound:
            self._bound = most
            self._resize()

    def _resize(self) -> None:
        most = min(part_of(self.subscription.concurrency, self._part), self._bound)
        self._free += most - self._most
        self._most = most
        self._wake()

    def took(self, feed: str, health: Health) -> None:
        """Start delivering a feed here, with its stored health."""
        self._standing.took(feed, health)

    def left(self, feed: str) -> None:
        """Stop delivering a feed here."""
        self._standing.left(feed)

    async def store_health(self, feed: str) -> None:
        """Store the health at a feed, for the next process that delivers it.

        Raises:
            StoreError: it was not stored; attempts are missing in the stored counts.
        """
        async with self._noting:
            health = self._standing.counts(feed)
            if health is not None:
                await self._store_one(feed, health)

    def uncounted(self, feed: str) -> bool:
        """Whether attempts at a feed are not stored yet."""
        return self._standing.counts(feed) is not None

    @property
    def error(self) -> str | None:
        """The error in this process, in words; None: it does not fail."""
        return self._standing.error

    def listen(self, changed: Callable[[], None]) -> None:
        """Call this function whenever the endpoint may have become free."""
        self._listeners.append(changed)

    def leave(self, changed: Callable[[], None]) -> None:
        """Stop calling this function."""
        with suppress(ValueError):
            self._listeners.remove(changed)

    def _wake(self) -> None:
        for changed in tuple(self._listeners):
            changed()

    @property
    def free(self) -> bool:
        """Whether a request may start now."""
        now = self._clock.monotonic()
        return self._free > 0 and not self.resting and now >= self._paused_until and self._credential.admits(now)

    @property
    def breathing(self) -> bool:
        """Whether an ailing sink gets no new events for now."""
        return self._clock.monotonic() < self._breath_until

    def next_moment(self, since: float) -> float | None:
        """The first moment after ``since`` when a pause or breath ends, or a missing credential is checked again.

        None: there is none.
        """
        first = None
        for moment in (self._paused_until, self._breath_until, self._credential.next_try):
            if moment is not None and moment > since and (first is None or moment < first):
                first = moment
        return first

    def acquire(self, *, fresh: bool) -> None:
        """Take a slot for a request; check :attr:`free` first. ``fresh``: for a new event."""
        self._free -= 1
        self._credential.attempt_started(self._clock.monotonic())
        if fresh:  # one new event checks whether an ailing sink is alive, not one per slot
            self._breathe()

    def release(self) -> None:
        """Release the slot."""
        self._free += 1
        if self._free == 1:  # else nothing waits for it
            self._listeners.rotate(-1)
            self._wake()

    async def turn(self, *, allowed: Callable[[], bool]) -> bool:
        """Wait for the rate limit. False: the attempt is no longer permitted."""
        if self._pace.is_limited:
            await self._pace.turn()
        now = self._clock.monotonic()
        if self._throttled.locked() or self._throttle.wait(now) > 0:
            async with self._throttled:  # first come, first served
                now = self._clock.monotonic()
                while self._is_open(now) and allowed() and (wait := self._throttle.wait(now)) > 0:
                    await self._clock.sleep(min(wait, LOOK_AGAIN))
                    now = self._clock.monotonic()
        if not self._is_open(now) or not allowed():
            return False
        self._throttle.start(now)
        return self._credential.turn()

    def _is_open(self, now: float) -> bool:
        return now >= self._paused_until and not self.resting

    async def send(self, batch: Sequence[SinkEvent], *, allowed: Callable[[], bool] = always) -> Outcome:
        """Make one attempt, directly after :meth:`turn`, with no await in between.

        ``allowed``: see :meth:`poller.delivery.sinks.base.Sink.send`.
        """
        asked, sent = self._credential.since is not None, self._clock.monotonic()
        outcome = await self._sink.send(batch, allowed=lambda: self._is_open(self._clock.monotonic()) and allowed())
        if outcome is NOT_PERMITTED:
            return outcome  # it says nothing about credential and sink
        now = self._clock.monotonic()
        self._heed(outcome, sent, now)
        if outcome.kind is OutcomeKind.NOT_SENT:
            self._missing(outcome.error, now)
        elif not outcome.was_sent:
            pass  # it says nothing about credential and sink
        elif (seconds := self._credential.passed(now, asked=asked)) is not None:
            self._wake()
            _log.info("credential works again", seconds=round(seconds, 1), **self._where)
        return outcome

    def _missing(self, error: str, now: float) -> None:
        if self._credential.failed(now):
            seconds = round(now - (self._credential.since or now), 1)
            _log.warning("credential fails", error=error, seconds=seconds, advice=_ADVICE, **self._where)

    def _heed(self, outcome: Outcome, sent: float, now: float) -> None:
        """Update the adaptive rate; pause the endpoint if it was too fast."""
        if outcome.is_delivered:
            self._throttle.taken(now)
        elif outcome.is_unexplained:
            span = self._throttle.refused(now, sent=sent)
            self._paused_until = max(self._paused_until, now + span)
            if span and now >= self._tell_rate:
                self._tell_rate = now + TELL_AGAIN
                rate = round(self._throttle.rate(now + span) or 0.0, 3)
                _log.warning("rate lowered", rate=rate, seconds=span, advice=_RATE_ADVICE, **self._where)

    @property
    def pause_left(self) -> timedelta:
        """The rest of the pause, in seconds."""
        return timedelta(seconds=max(self._paused_until - self._clock.monotonic(), 0.0))

    @property
    def is_paused(self) -> bool:
        """Whether the sink has requested a pause."""
        return self._clock.monotonic() < self._paused_until

    def resume(self) -> None:
        """End a pause for an operator; retries that wait for it end their wait, and failures are forgotten."""
        self._standing.resume()
        self._paused_until = self._asked_until = self._clock.monotonic()
        self._unstored = None
        self._wake()

    def pause(self, span: timedelta) -> None:
        """Pause for this long, as the sink has requested; :meth:`store_pause` stores it."""
        self._begin_pause(span)
        self._unstored = self._asked_until

    def paused_elsewhere(self, until: datetime, since: datetime | None = None) -> None:
        """Adopt a pause that another process has stored, of the length that it has since then at most."""
        left = until - self._clock.now()
        self._begin_pause(left if since is None else min(left, until - since))

    def _begin_pause(self, span: timedelta) -> None:
        self._asked_until = max(self._asked_until, self._clock.monotonic() + span.total_seconds())
        self._paused_until = max(self._paused_until, self._asked_until)

    def pause_is_lost(self) -> None:
        """Store the requested pause again, if it is not over: the store does not have it."""
        if self._unstored is None and self._clock.monotonic() < self._asked_until:
            self._unstored = self._asked_until
            self._wake()

    def learn(self, feed: str, outcome: Outcome, now: datetime) -> Awaitable[None] | None:
        """Record the outcome of an attempt that ended now, by the store's clock, UTC.

        Returns:
            What stores and announces changes of the health, to be awaited; None: nothing changed. It wakes the feed
            consumers first, so that they write the outcome meanwhile. It raises StoreError if the health was not
            stored; the next outcome tries again.
        """
        if outcome.is_delivered:
            if self._failed_in_a_row:
                self._breath_until, self._failed_in_a_row = self._clock.monotonic(), 0
                self._wake()
            self._standing.succeeded(feed, now)
            return self._recovered(now) if self._unwell or self._standing.unnoted else None
        if outcome.kind is OutcomeKind.REJECTED:
            return None  # the fault is the event's, not the sink's
        if outcome.kind is OutcomeKind.NOT_SENT:
            self._standing.unsent(feed, now, outcome.error)
            return self._note_changes()
        self._standing.failed(feed, now, outcome.error or None, clock=self._clock.monotonic())
        if not outcome.is_unexplained:  # the sink is alive, and has an adaptive rate now
            self._failed_in_a_row += 1
            self._breathe()
        return self._judge(outcome)

    async def _recovered(self, at: datetime) -> None:
        if self._unwell:
            self._wake()
            await self._notes.recovered(self.subscription.id, at)
            self._unwell = False
        await self._note_changes()

    async def _note_changes(self) -> None:
        """Store changes of the health, one after another: two writes at once may arrive the wrong way round."""
        if self._noting.locked():
            return  # its holder sees this change, too
        async with self._noting:
            while unnoted := self._standing.unnoted:
                self._wake()
                for feed, health in unnoted:
                    await self._store_one(feed, health)

    async def _store_one(self, feed: str, health: Health) -> None:
        await self._notes.health(self.subscription.id, feed, health)
        self._standing.noted(feed, health)

    async def _judge(self, outcome: Outcome) -> None:
        """Pause the subscription if all processes saw nothing but failures for too long."""
        if not self.resting and self._too_long():
            self._wake()
            self._standing.heard(await self._notes.healths(self.subscription.id))
            if self._too_long():
                limit = self.subscription.disable_after
                await self.rest("failures", f"nothing but failures for {limit}; the last one: {outcome.error}")
                self._unwell = True
        await self._note_changes()

    def _too_long(self) -> bool:
        lasted = self._standing.failing_for
        return lasted is not None and lasted >= self.subscription.disable_after

    @property
    def has_unstored_pause(self) -> bool:
        """Whether the sink has requested a pause that the store may not have."""
        return self._unstored is not None

    async def store_pause(self) -> None:
        """Store a requested pause, for other processes and for operators, unless the store has it or it is over.

        Raises:
            StoreError: it was not stored; the next call tries again.
        """
        unstored = self._unstored
        if unstored is None:
            return
        left = self._asked_until - self._clock.monotonic()
        if left > 0:
            await self._notes.until(self.subscription.id, self._clock.now() + timedelta(seconds=left))
        if self._unstored == unstored:  # else the sink has requested a longer one meanwhile
            self._unstored = None

    async def rest(self, by: Literal["sink", "failures"], reason: str) -> None:
        """Pause the subscription until an operator resumes it.

        Raises:
            StoreError: the pause was not stored; the next attempt, a moment later, decides again.
        """
        self.resting = True
        self._wake()
        try:
            await self._notes.rest(self.subscription.id, by=by, reason=reason, at=self._clock.now())
        except BaseException:  # also when cancelled, as by a lost lease
            self.resting = False
            self._paused_until = max(self._paused_until, self._clock.monotonic() + REST_AGAIN)
            raise
        self.is_pause_stored = True

    def _breathe(self) -> None:
        """Hold back new events from an ailing sink for a while; retries do not extend it."""
        if self.breathing:
            return
        beyond = self._failed_in_a_row - MANY_FAILURES
        if beyond >= 0:
            breath = min(FIRST_BREATH * 2 ** min(beyond, _DOUBLINGS), LONGEST_BREATH)
            self._breath_until = self._clock.monotonic() + breath


TELL_AGAIN: Final = 60.0
"""Seconds between two log events about the same outage."""

_WAIT: Final = CREDENTIAL_WAIT.total_seconds()


class CredentialOutage:
    """A missing credential of one subscription in this process.

    Attributes:
        since: its beginning; None: there is no outage.
        next_try: when an attempt may check whether it is over; None: there is no outage.
    """

    __slots__ = ("_logged_at", "_may_try", "next_try", "since")

    def __init__(self) -> None:
        """Begin without an outage."""
        self.since: float | None = None
        self.next_try: float | None = None
        self._may_try = False
        self._logged_at = 0.0

    def admits(self, now: float) -> bool:
        """Whether an attempt may begin."""
        return self.next_try is None or now >= self.next_try

    def attempt_started(self, now: float) -> None:
        """Record the start of an attempt. During an outage it is the check, and no other starts for a while."""
        if self.since is not None:
            self._may_try, self.next_try = True, now + _WAIT

    def turn(self) -> bool:
        """Whether a started attempt may be sent."""
        if self.since is None:
            return True
        may, self._may_try = self._may_try, False
        return may

    def failed(self, now: float) -> bool:
        """Record that the credential is missing. True: log it, at first and then once a minute."""
        first = self.since is None
        if self.since is None:
            self.since = now
        self.next_try = now + _WAIT
        if not first and now - self._logged_at < TELL_AGAIN:
            return False
        self._logged_at = now
        return True

    def passed(self, now: float, *, asked: bool) -> float | None:
        """Record that an attempt reached the sink. Returns the seconds of an outage that ended.

        ``asked``: whether the attempt was a check.
        """
        if self.since is None or not asked:
            return None
        began, self.since, self.next_try = self.since, None, None
        return now - began
