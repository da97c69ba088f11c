"""State of one endpoint in this process, shared by all feeds of its subscription.

An endpoint has limits on attempts in flight and per second. Where the sink refuses for its load, the rate that it bears
is measured (:mod:`poller.limits`). It is *paused* while a ``Retry-After`` lasts, *ailing* after many failures in a row,
and *resting* once its subscription is paused. While what signs requests or proves who sends them is *missing*, all
wait, and one attempt in :data:`CREDENTIAL_WAIT` finds out whether it is back. That counts as failing, but not for
``disable_after``, because it says nothing of the sink; the log has one line when it begins, one a minute, and one when
it is over.

An ailing sink is spared: retries come when they are due, each new event only after a breath that doubles. So a dead
sink costs little, leaves nearly all events unread in the stream, and is found alive within :data:`LONGEST_BREATH`. The
first success ends it.

**Invariants**

* No attempt starts while the endpoint is paused, whichever feed it is for.
* Feeds take turns: a free place is offered to each of them first, one time after the other.
* Where several processes share the feeds, each uses the part of places and rate that its feeds are of all.
* While something is missing, no attempt begins between two that find out, and what began before is not sent.
* An attempt that was under way before something was missing does not end that state.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Final, Literal, Protocol

import structlog

from poller.clock import Clock
from poller.delivery.endpoint_health import EndpointHealth, Health
from poller.delivery.filters import Subscription
from poller.delivery.retry import CREDENTIAL_WAIT
from poller.delivery.sinks.base import Outcome, OutcomeKind, Sink, SinkEvent
from poller.limits import AdaptiveRate, RateLimiter, part_of

MANY_FAILURES: Final = 20
LOOK_AGAIN: Final = 0.1  # seconds; the rate that a sink bears rises while one waits for it
FIRST_BREATH: Final = 0.5
LONGEST_BREATH: Final = 5.0
_ADVICE: Final = "nothing is lost; it is tried again every few seconds, and all goes out when it can be had"
_RATE_ADVICE: Final = "the sink answers 429; set rate of the subscription to what it allows, or let it send Retry-After"
_DOUBLINGS: Final = 8

_log = structlog.get_logger("poller.delivery")


class EndpointNotes(Protocol):
    """Where it is written down what outlives this process."""

    async def until(self, subscription: str, moment: datetime) -> None:
        """The sink wants nothing before then."""
        ...

    async def health(self, subscription: str, feed: str, health: Health) -> None:
        """How it is doing at a feed."""
        ...

    async def healths(self, subscription: str) -> Mapping[str, Health]:
        """Its health at each feed, in whichever process delivers it."""
        ...

    async def rest(self, subscription: str, *, by: Literal["sink", "failures"], reason: str, at: datetime) -> None:
        """Pause it until an operator resumes it, and announce that."""
        ...

    async def recovered(self, subscription: str, at: datetime) -> None:
        """Note that it took an event again; announced once, by one process."""
        ...


class EndpointState:
    """The limits and the state of one subscription."""

    def __init__(
        self,
        subscription: Subscription,
        sink: Sink,
        notes: EndpointNotes,
        *,
        unwell: bool = False,
        paused_until: datetime | None,
        resumed: int = 0,
        clock: Clock,
    ) -> None:
        """Take what was known of it when this process began.

        Args:
            subscription: what is wanted.
            sink: the way to it.
            notes: what outlives this process.
            unwell: whether nothing has succeeded since its failures disabled it.
            paused_until: as it was noted last.
            resumed: when an operator last ended a pause of the sink, in milliseconds of the store's clock.
            clock: the store's.
        """
        self.subscription = subscription
        self._where = {"subscription": subscription.id, "sink": subscription.sink}
        self.resting = False
        self.resumed = resumed
        self._sink = sink
        self._notes = notes
        self._standing = EndpointHealth(subscription.disable_after, longest=subscription.patience.widest)
        self._credential = CredentialOutage()
        self._unwell = unwell
        self._failed_in_a_row = 0
        self._clock = clock
        self._most = self._free = subscription.concurrency
        self._pace = RateLimiter(subscription.rate)
        self._throttle = AdaptiveRate()
        self._throttled = asyncio.Lock()
        self._tell_rate = clock.monotonic()
        self._paused_until = self._breath_until = clock.monotonic()
        if paused_until:
            self._paused_until += (paused_until - clock.now()).total_seconds()
        self._listeners: deque[Callable[[], None]] = deque()

    def share(self, part: Fraction) -> None:
        """Use only this part of the limits; other processes have the rest."""
        most = part_of(self.subscription.concurrency, part)
        self._free += most - self._most
        self._most = most
        self._pace.change(part)
        for changed in tuple(self._listeners):
            changed()

    def took(self, feed: str, health: Health) -> None:
        """Begin to deliver a feed here, with its health as noted last."""
        self._standing.took(feed, health)

    def left(self, feed: str) -> None:
        """It is not delivered here any more."""
        self._standing.left(feed)

    async def store_health(self, feed: str) -> None:
        """Store the health at a feed, for the next process that delivers it.

        Raises:
            StoreError: it could not be noted: attempts are missing in the counts.
        """
        health = self._standing.counts(feed)
        if health is not None:
            await self._notes.health(self.subscription.id, feed, health)
            self._standing.noted(feed, health)

    def uncounted(self, feed: str) -> bool:
        """Whether attempts at a feed are not noted yet."""
        return self._standing.counts(feed) is not None

    @property
    def error(self) -> str | None:
        """How it fails in this process, in words; None where it does not."""
        return self._standing.error

    def listen(self, changed: Callable[[], None]) -> None:
        """Call this whenever something may be sent that could not before."""
        self._listeners.append(changed)

    def leave(self, changed: Callable[[], None]) -> None:
        """Do so no more."""
        with suppress(ValueError):
            self._listeners.remove(changed)

    @property
    def free(self) -> bool:
        """Whether a request may start now."""
        now = self._clock.monotonic()
        return self._free > 0 and not self.resting and now >= self._paused_until and self._credential.admits(now)

    @property
    def breathing(self) -> bool:
        """Whether an ailing sink is to be left alone by new events for now."""
        return self._clock.monotonic() < self._breath_until

    @property
    def next_moment(self) -> float | None:
        """When a pause or breath ends, or a missing credential may be back; None: never."""
        moments, now = (self._paused_until, self._breath_until, self._credential.next_try), self._clock.monotonic()
        return min((moment for moment in moments if moment is not None and moment > now), default=None)

    def acquire(self, *, fresh: bool) -> None:
        """Take a place among the requests in flight; look at :attr:`free` before. ``fresh``: for a new event."""
        self._free -= 1
        self._credential.attempt_started(self._clock.monotonic())
        if fresh:  # one new event finds out whether an ailing sink is alive, not as many as there are places
            self._breathe()

    def release(self) -> None:
        """Give the place back."""
        self._free += 1
        self._listeners.rotate(-1)
        for changed in tuple(self._listeners):
            changed()

    async def turn(self, *, allowed: Callable[[], bool]) -> bool:
        """Wait until one attempt may be made; whether it still may then."""
        await self._pace.turn()

        def is_open() -> bool:
            return not self.resting and self._clock.monotonic() >= self._paused_until and allowed()

        if self._throttled.locked() or self._throttle.wait(self._clock.monotonic()) > 0:
            async with self._throttled:  # first come, first served
                while is_open() and (wait := self._throttle.wait(self._clock.monotonic())) > 0:
                    await self._clock.sleep(min(wait, LOOK_AGAIN))
        if not is_open():
            return False
        self._throttle.start(self._clock.monotonic())
        return self._credential.turn()

    async def send(self, batch: Sequence[SinkEvent]) -> Outcome:
        """One attempt; begins immediately, with nothing awaited between :meth:`turn` and this."""
        asked, sent = self._credential.since is not None, self._clock.monotonic()
        outcome = await self._sink.send(batch)
        self._heed(outcome, sent)
        if outcome.kind is OutcomeKind.NOT_SENT:
            self._missing(outcome.error)
        elif not outcome.was_sent:
            pass  # nothing is learnt of what signs it, or of the sink
        elif (seconds := self._credential.passed(self._clock.monotonic(), asked=asked)) is not None:
            _log.info("credential works again", seconds=round(seconds, 1), **self._where)
        return outcome

    def _missing(self, error: str) -> None:
        now = self._clock.monotonic()
        if self._credential.failed(now):
            seconds = round(now - (self._credential.since or now), 1)
            _log.warning("credential fails", error=error, seconds=seconds, advice=_ADVICE, **self._where)

    def _heed(self, outcome: Outcome, sent: float) -> None:
        """Learn the rate that the sink bears; pause it where this was too fast."""
        now = self._clock.monotonic()
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
        """How long nothing is sent from now on."""
        return timedelta(seconds=max(self._paused_until - self._clock.monotonic(), 0.0))

    @property
    def is_paused(self) -> bool:
        """Whether the sink wants nothing now."""
        return self._clock.monotonic() < self._paused_until

    def resume(self) -> None:
        """An operator ends what pause there is; what waits because of it is due now."""
        self._paused_until = self._clock.monotonic()
        self.resumed = int(self._clock.now().timestamp() * 1000)
        for changed in tuple(self._listeners):
            changed()

    def pause(self, span: timedelta) -> datetime:
        """Nothing is sent for so long; when that ends by the store's clock."""
        self._paused_until = max(self._paused_until, self._clock.monotonic() + span.total_seconds())
        return self._clock.now() + timedelta(seconds=self._paused_until - self._clock.monotonic())

    def paused_elsewhere(self, until: datetime) -> None:
        """Another process has learnt that the sink wants nothing before then."""
        self.pause(until - self._clock.now())

    async def learn(self, feed: str, outcome: Outcome) -> None:
        """Note how an attempt at a feed ended, and tell whom it concerns.

        Raises:
            StoreError: it could not be noted; the next attempt's end brings it up again.
        """
        if outcome.kind is OutcomeKind.NOT_SENT:
            self._standing.unsent(feed, self._clock.now(), outcome.error)
        elif outcome.kind is OutcomeKind.REJECTED:
            return  # it says something of the event alone
        elif outcome.is_delivered:
            self._breath_until, self._failed_in_a_row = self._clock.monotonic(), 0
            self._standing.succeeded(feed, self._clock.now())
            if self._unwell:
                await self._notes.recovered(self.subscription.id, self._clock.now())
                self._unwell = False
        else:
            self._standing.failed(feed, self._clock.now(), outcome.error or None, clock=self._clock.monotonic())
            if not outcome.is_unexplained:  # it is alive, and has a rate of its own now
                self._failed_in_a_row += 1
                self._breathe()
            await self._judge(outcome)
        for name, health in self._standing.unnoted:
            await self._notes.health(self.subscription.id, name, health)
            self._standing.noted(name, health)

    async def _judge(self, outcome: Outcome) -> None:
        """Let it rest where nothing but failures came for too long, from any process."""
        if self.resting or not self._too_long():
            return
        self._standing.heard(await self._notes.healths(self.subscription.id))
        if self._too_long():
            limit = self.subscription.disable_after
            await self.rest("failures", f"nothing but failures for {limit}; the last one: {outcome.error}")
            self._unwell = True

    def _too_long(self) -> bool:
        lasted = self._standing.failing_for
        return lasted is not None and lasted >= self.subscription.disable_after

    async def paused(self, until: datetime) -> None:
        """Write down that the sink wants nothing before then."""
        await self._notes.until(self.subscription.id, until)

    async def rest(self, by: Literal["sink", "failures"], reason: str) -> None:
        """Pause it until an operator resumes it.

        Raises:
            StoreError: no other process would learn of it, so it does not rest.
        """
        self.resting = True
        try:
            await self._notes.rest(self.subscription.id, by=by, reason=reason, at=self._clock.now())
        except BaseException:  # cancelled, too, as by a lost lease
            self.resting = False
            raise

    def _breathe(self) -> None:
        """Hold back new events from an ailing sink for a while.

        Retries meanwhile do not make that longer.
        """
        if self.breathing:
            return
        beyond = self._failed_in_a_row - MANY_FAILURES
        if beyond >= 0:
            breath = min(FIRST_BREATH * 2 ** min(beyond, _DOUBLINGS), LONGEST_BREATH)
            self._breath_until = self._clock.monotonic() + breath


TELL_AGAIN: Final = 60.0
"""Seconds between two words on one and the same."""

_WAIT: Final = CREDENTIAL_WAIT.total_seconds()


class CredentialOutage:
    """Of one subscription in this process.

    Attributes:
        since: when it began; None where it does not go on.
        next_try: when one attempt may find out; None likewise.
    """

    __slots__ = ("_logged_at", "_may_try", "next_try", "since")

    def __init__(self) -> None:
        """Everything can be had, as far as is known."""
        self.since: float | None = None
        self.next_try: float | None = None
        self._may_try = False
        self._logged_at = 0.0

    def admits(self, now: float) -> bool:
        """Whether an attempt may begin."""
        return self.next_try is None or now >= self.next_try

    def attempt_started(self, now: float) -> None:
        """Note that an attempt begins.

        While nothing can be sent it is the one that finds out, and no other does for a while.
        """
        if self.since is not None:
            self._may_try, self.next_try = True, now + _WAIT

    def turn(self) -> bool:
        """Whether what was begun may be sent, now that its turn has come."""
        if self.since is None:
            return True
        may, self._may_try = self._may_try, False
        return may

    def failed(self, now: float) -> bool:
        """Note that the credential is missing; whether to log it: at first, then sometimes."""
        first = self.since is None
        if self.since is None:
            self.since = now
        self.next_try = now + _WAIT
        if not first and now - self._logged_at < TELL_AGAIN:
            return False
        self._logged_at = now
        return True

    def passed(self, now: float, *, asked: bool) -> float | None:
        """Note that an attempt reached the sink; returns the seconds of an outage that ended.

        ``asked``: whether it was sent to find out.
        """
        if self.since is None or not asked:
            return None
        began, self.since, self.next_try = self.since, None, None
        return now - began
