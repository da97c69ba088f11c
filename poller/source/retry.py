"""The gate that every request of a source passes: shut while the API asked to be left alone or does not answer.

One gate is shared by all feeds of a source. The rules are those of :mod:`poller.source.retry` and
:mod:`poller.source.retry`; here they meet the clock. Between the last look at the gate and the start of a request
nothing may be awaited.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Final

import msgspec

from poller.errors import SourceNotAsked, SourceUnavailable
from poller.http.transport import pause_requested

# What follows from one exchange: the policy of retries as a table.
#
# Theory of operation
# -------------------
# ======================================  ==========================================
# ====================================
# outcome                                 step                                        does the API count as answering
# ======================================  ==========================================
# ====================================
# 429                                     pause the source, a second at least         yes: it is there, and busy
# 5xx with ``Retry-After``                pause the source for so long                no
# network, timeout, 408, 425, other 5xx   again after a pause that doubles, jittered  no
# closed before a byte came, first time   again at once                               no
# any other status                        final: asking again would not change it     yes
# ======================================  ==========================================
# ====================================
#
# The pause belongs to the source: none of its feeds starts a request in it. A further attempt is made only while
# there
# is something left of the caller's patience and of :data:`ATTEMPTS`; beyond that the feed's next round is the retry.
#
# Pure: the jitter and the wall clock are arguments, and nothing waits here.

ATTEMPTS: Final = 3
PATIENCE: Final = timedelta(seconds=30)
FIRST_PAUSE: Final = timedelta(seconds=0.25)
DOUBLINGS: Final = 8  # to about a minute, whatever the attempts are one day

_TOO_MANY: Final = 429
_PASSING: Final = frozenset({408, 425, _TOO_MANY})
_SERVER_ERRORS: Final = range(500, 1000)


class ExchangeOutcome(msgspec.Struct, frozen=True):
    """How an exchange ended, as far as manners are concerned.

    Attributes:
        status: the HTTP status; None where no complete answer came.
        closed: the connection was closed before a byte of an answer, as a server does with one that was idle for long.
        retry_after: the header's text.
        date: the text of the answer's ``Date``.
    """

    status: int | None = None
    closed: bool = False
    retry_after: str | None = None
    date: str | None = None

    @property
    def transient(self) -> bool:
        """Whether asking again may bring something else."""
        return self.status is None or self.status in _PASSING or self.status in _SERVER_ERRORS

    @property
    def answering(self) -> bool:
        """Whether it shows an API that is there."""
        return not self.transient or self.status == _TOO_MANY


class NoRetry(msgspec.Struct, frozen=True):
    """The answer stands, good or not."""


class RetryLater(msgspec.Struct, frozen=True):
    """Worth another attempt ``after`` a while."""

    after: timedelta


class PauseSource(msgspec.Struct, frozen=True):
    """The whole source is left alone for so long (``after``); then it is worth another attempt."""

    after: timedelta


Step = NoRetry | RetryLater | PauseSource


def step_after(outcome: ExchangeOutcome, *, attempt: int, jitter: float, now: datetime) -> Step:
    """What follows from this outcome.

    Args:
        outcome: how the exchange ended.
        attempt: which attempt it was, from 1.
        jitter: a factor for the pause, about 1; it never shortens what the API asked for.
        now: the wall clock, UTC.
    """
    if not outcome.transient:
        return NoRetry()
    if outcome.status == _TOO_MANY or (outcome.status in _SERVER_ERRORS and outcome.retry_after is not None):
        return PauseSource(pause_within_bounds(outcome.retry_after, date=outcome.date, now=now))
    if outcome.closed and attempt == 1:
        return RetryLater(timedelta(0))
    return RetryLater(FIRST_PAUSE * 2 ** min(attempt - 1, DOUBLINGS) * jitter)


def is_affordable(wait: timedelta, *, attempt: int, left: timedelta) -> bool:
    """Whether a caller that made ``attempt`` attempts, and has so much patience ``left``, can wait and try again."""
    return attempt < ATTEMPTS and wait < left


Learn = Callable[[ExchangeOutcome, Step], None]


class RequestGate:
    """Whether a request may start. Used within one event loop."""

    def __init__(
        self,
        *,
        clock: Callable[[], timedelta],
        now: Callable[[], datetime],
        sleep: Callable[[float], Awaitable[None]],
        jitter: Callable[[], float],
    ) -> None:
        """Take what it works with.

        Args:
            clock: one that only goes forward, from any beginning.
            now: the wall clock, UTC; only messages show it.
            sleep: waits for so many seconds.
            jitter: a fresh factor for each pause, about 1.
        """
        self._clock = clock
        self._now = now
        self._sleep = sleep
        self._jitter = jitter
        self._circuit = Circuit()
        self._shut_until = clock()

    @property
    def shut(self) -> bool:
        """Whether the API asked to be left alone, and the time is not over."""
        return self._clock() < self._shut_until

    @property
    def opens_at(self) -> datetime | None:
        """When the time is over for which the API asked to be left alone; None where it did not, or it is."""
        return self._now() + (self._shut_until - self._clock()) if self.shut else None

    async def passed(self, path: str, *, deadline: timedelta) -> None:
        """Wait until the pause is over.

        Raises:
            SourceUnavailable: it is not over before the deadline, or the API does not answer and no probe is due.
        """
        while self.shut:
            if self._shut_until > deadline:
                raise SourceUnavailable(f"GET {path}: not asked; {self.asked}")
            await self._sleep((self._shut_until - self._clock()).total_seconds())
        self._admit(path)

    @contextmanager
    def request(self, path: str) -> Iterator[Learn]:
        """A request starts now; it hands over what it learned, or was called off.

        Raises:
            SourceNotAsked: another request is the probe already.
        """
        self._admit(path)
        self._circuit = self._circuit.started()
        probe, learned = self._circuit.probing, False

        def learn(outcome: ExchangeOutcome, step: Step) -> None:
            nonlocal learned
            learned = True
            if isinstance(step, PauseSource):
                self._shut_until = max(self._shut_until, self._clock() + step.after)
            if outcome.answering:
                self._circuit = self._circuit.answered()
            else:
                self._circuit = self._circuit.failed(self._clock(), probe=probe, jitter=self._jitter())

        try:
            yield learn
        finally:
            if probe and not learned:
                self._circuit = self._circuit.abandoned()

    @property
    def asked(self) -> str:
        """Until when the API asked to be left alone, in words."""
        return f"the API asked to be left alone until {_shown(self._now() + (self._shut_until - self._clock()))}"

    @property
    def answering(self) -> bool:
        """Whether the circuit is closed, and everybody may ask."""
        return self._circuit.due is None

    def _admit(self, path: str) -> None:
        if self._circuit.admits(self._clock()):
            return
        at, since, due = self._clock(), self._circuit.since, self._circuit.due
        if since is None or due is None:
            raise AssertionError("a circuit that admits nobody is open, and knows since when")
        probe = "a probe is on its way" if self._circuit.probing else f"next probe in {_seconds(due - at)}"
        raise SourceNotAsked(
            f"GET {path}: not asked; the API has not answered since {_shown(self._now() - (at - since))}; {probe}"
        )


def _shown(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _seconds(span: timedelta) -> str:
    return f"{max(span.total_seconds(), 0.1):.1f} s"


# How long an API asks to be left alone, within bounds.
#
# The law: whatever ``Retry-After`` holds, the answer is between :data:`FLOOR` and :data:`CAP`.
#
# Which answers pause anything is not decided here; see :mod:`poller.source.retry`.

FLOOR: Final = timedelta(seconds=1)
CAP: Final = timedelta(hours=1)


def pause_within_bounds(value: str | None, *, date: str | None, now: datetime) -> timedelta:
    """The pause that an answer asks for; nothing, nonsense or a moment that has passed: the floor.

    Args:
        value: its ``Retry-After``.
        date: its ``Date``.
        now: the wall clock, UTC; what a date is compared with where ``date`` cannot be read.
    """
    return min(max(pause_requested(value, date=date, now=now) or FLOOR, FLOOR), CAP)


# The circuit of a source: when an API does not answer, it is asked once in a while and not by everybody.
#
# Theory of operation
# -------------------
# *Closed*: every request may start. :data:`THRESHOLD` failures in a row open it. *Open*: no request may start until
# the
# probe is due; then one may, and until it is back no other. A probe that fails opens the circuit again for twice as
# long, up to :data:`LONGEST`; any answer at all closes it, be it of a request that was under way since before.
#
# A value and its successors: time comes in as the reading of a clock that only goes forward, nothing is awaited.

THRESHOLD: Final = 5
SHORTEST: Final = timedelta(seconds=1)
LONGEST: Final = timedelta(seconds=60)


class Circuit(msgspec.Struct, frozen=True):
    """Where a source stands.

    Attributes:
        failures: how many there were in a row.
        since: when the first of them was; None where there is none.
        due: when the next probe may start; None while the circuit is closed.
        pause: how long the last pause was before its jitter.
        probing: whether a probe is on its way.
    """

    failures: int = 0
    since: timedelta | None = None
    due: timedelta | None = None
    pause: timedelta = timedelta(0)
    probing: bool = False

    def admits(self, at: timedelta) -> bool:
        """Whether a request may start now; where the circuit is open, as its probe."""
        return self.due is None or (at >= self.due and not self.probing)

    def started(self) -> Circuit:
        """A request that was admitted starts."""
        return self if self.due is None else msgspec.structs.replace(self, probing=True)

    def answered(self) -> Circuit:
        """The API answered."""
        return Circuit()

    def failed(self, at: timedelta, *, probe: bool, jitter: float) -> Circuit:
        """A request failed; ``probe`` says whether it was the probe, ``jitter`` is a factor about 1."""
        failures, since = self.failures + 1, at if self.since is None else self.since
        if failures < THRESHOLD or (self.due is not None and not probe):
            # One that was sent before the circuit opened says nothing new, and must not make the pause longer.
            return msgspec.structs.replace(self, failures=failures, since=since)
        pause = min(max(self.pause * 2, SHORTEST), LONGEST)
        return Circuit(failures, since, due=at + min(pause * jitter, LONGEST), pause=pause)

    def abandoned(self) -> Circuit:
        """The probe was called off before it was answered: the next request may be the probe."""
        return msgspec.structs.replace(self, probing=False)
