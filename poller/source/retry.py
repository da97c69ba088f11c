"""Retries and pauses of one source: the retry policy, the circuit, and the request gate.

Theory of operation
-------------------
======================================  ===========================================  ==================
outcome                                 step                                         circuit counts it
======================================  ===========================================  ==================
429                                     pause the source, at least one second        as an answer
5xx with ``Retry-After``                pause the source for that time               as a failure
network, timeout, 408, 425, other 5xx   retry after a pause that doubles, jittered   as a failure
closed before a byte came, first time   retry immediately                            as a failure
any other status                        final: a retry would not change it           as an answer
======================================  ===========================================  ==================

The circuit is *closed* while the API answers. :data:`THRESHOLD` failures in a row open it. While it is *open*, no
request may start until the probe is due; then one may, and no other until that one has ended. A probe that fails
opens the circuit again for twice as long, up to :data:`LONGEST`. Any answer closes it, also to a request that was
sent before.

A listing that always fails says nothing about the others. After :data:`THRESHOLD` failures of one path without an
answer to it, further ones do not count towards opening the circuit; otherwise a few such listings would keep it open
for those that answer.

**Invariants**

- A pause belongs to the source: none of its feeds starts a request in it. It is between :data:`FLOOR` and
  :data:`CAP`, whatever ``Retry-After`` holds.
- A further attempt is made only while the caller has patience and fewer than :data:`ATTEMPTS` were made; after that
  the feed's next round is the retry.
- Nothing is awaited between the last check of the gate and the start of a request.
- Policy and circuit are pure: the clock and the jitter are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Final

import msgspec

from poller.clock import Clock
from poller.errors import SourceNotAsked, SourceUnavailable
from poller.limits import pause_requested

ATTEMPTS: Final = 3
PATIENCE: Final = timedelta(seconds=30)
FIRST_PAUSE: Final = timedelta(seconds=0.25)
DOUBLINGS: Final = 8  # to about a minute, whatever the attempts are one day

_TOO_MANY: Final = 429
_PASSING: Final = frozenset({408, 425, _TOO_MANY})
_SERVER_ERRORS: Final = range(500, 1000)


class ExchangeOutcome(msgspec.Struct, frozen=True):
    """How an exchange ended, as far as retries are concerned.

    Attributes:
        status: the HTTP status; None: no complete answer came.
        closed: whether the connection was closed before the first byte, as servers do with idle ones.
        retry_after: the header's text.
        date: the text of the answer's ``Date``.
    """

    status: int | None = None
    closed: bool = False
    retry_after: str | None = None
    date: str | None = None

    @property
    def transient(self) -> bool:
        """Whether a retry may have another outcome."""
        return self.status is None or self.status in _PASSING or self.status in _SERVER_ERRORS

    @property
    def answering(self) -> bool:
        """Whether it shows that the API is up."""
        return not self.transient or self.status == _TOO_MANY


class NoRetry(msgspec.Struct, frozen=True):
    """The answer is final, good or not."""


class RetryLater(msgspec.Struct, frozen=True):
    """Another attempt is worthwhile ``after`` a while."""

    after: timedelta


class PauseSource(msgspec.Struct, frozen=True):
    """No request to the source starts for this time; then another attempt is worthwhile."""

    after: timedelta


Step = NoRetry | RetryLater | PauseSource


def step_after(outcome: ExchangeOutcome, *, attempt: int, jitter: float, now: datetime) -> Step:
    """The step that follows this outcome.

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
    """Whether a caller may wait this long and try again.

    Args:
        wait: the time to wait.
        attempt: how many attempts were made.
        left: the rest of the caller's patience.
    """
    return attempt < ATTEMPTS and wait < left


Learn = Callable[[ExchangeOutcome, Step], None]


class RequestGate:
    """Decides whether a request may start. One for all feeds of a source, in one event loop."""

    def __init__(self, clock: Clock) -> None:
        """Start with the gate open."""
        self._clock = clock
        self._circuit = Circuit()
        self._failing: dict[str, int] = {}
        self._shut_until = self.elapsed

    @property
    def elapsed(self) -> timedelta:
        """The monotonic clock."""
        return timedelta(seconds=self._clock.monotonic())

    @property
    def jitter(self) -> float:
        """A new random factor for a pause, about 1."""
        return self._clock.random.uniform(0.5, 1.5)

    @property
    def shut(self) -> bool:
        """Whether the API asked for a pause that is not over."""
        return self.elapsed < self._shut_until

    @property
    def opens_at(self) -> datetime | None:
        """The end of the pause that the API asked for; None: there is none."""
        return self._clock.now() + (self._shut_until - self.elapsed) if self.shut else None

    async def passed(self, path: str, *, deadline: timedelta) -> None:
        """Wait until the pause is over.

        Raises:
            SourceUnavailable: it is not over before the deadline, or the API does not answer and no probe is due.
        """
        while self.shut:
            if self._shut_until > deadline:
                raise SourceUnavailable(f"GET {path}: not asked; {self.asked}")
            await self._clock.sleep((self._shut_until - self.elapsed).total_seconds())
        self._admit(path)

    @contextmanager
    def request(self, path: str) -> Iterator[Learn]:
        """Start a request; the block reports its outcome, unless it was cancelled.

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
                self._shut_until = max(self._shut_until, self.elapsed + step.after)
            if outcome.answering:
                self._failing.pop(path, None)
                self._circuit = self._circuit.answered()
            elif self._failed(path) <= THRESHOLD or probe:
                self._circuit = self._circuit.failed(self.elapsed, probe=probe, jitter=self.jitter)

        try:
            yield learn
        finally:
            if probe and not learned:
                self._circuit = self._circuit.abandoned()

    @property
    def asked(self) -> str:
        """The pause after a refusal, as long as the API asked for or as :data:`FLOOR`, in words."""
        until = _shown(self._clock.now() + (self._shut_until - self.elapsed))
        return f"the API gets no request before {until}, for it has answered 429 or with Retry-After"

    @property
    def answering(self) -> bool:
        """Whether the circuit is closed."""
        return self._circuit.due is None

    def _failed(self, path: str) -> int:
        """Count a failure of this path; returns how many there were since it last answered."""
        count = self._failing.pop(path, 0) + 1
        if len(self._failing) >= _PATHS:
            del self._failing[next(iter(self._failing))]  # the one whose last failure is the oldest
        self._failing[path] = count
        return count

    def _admit(self, path: str) -> None:
        if self._circuit.admits(self.elapsed):
            return
        at, since, due = self.elapsed, self._circuit.since, self._circuit.due
        if since is None or due is None:
            raise AssertionError("a circuit that admits no request is open and has a start")
        probe = "a probe is on its way" if self._circuit.probing else f"next probe in {_seconds(due - at)}"
        raise SourceNotAsked(
            f"GET {path}: not asked; the API has not answered since {_shown(self._clock.now() - (at - since))}; {probe}"
        )


def _shown(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _seconds(span: timedelta) -> str:
    return f"{max(span.total_seconds(), 0.1):.1f} s"


FLOOR: Final = timedelta(seconds=1)
CAP: Final = timedelta(hours=1)


def pause_within_bounds(value: str | None, *, date: str | None, now: datetime) -> timedelta:
    """The pause that an answer asks for, within bounds.

    Args:
        value: its ``Retry-After``; nothing, nonsense or a past moment: the floor.
        date: its ``Date``.
        now: the wall clock, UTC; used where ``date`` cannot be read.
    """
    return min(max(pause_requested(value, date=date, now=now) or FLOOR, FLOOR), CAP)


THRESHOLD: Final = 5
SHORTEST: Final = timedelta(seconds=1)
LONGEST: Final = timedelta(seconds=60)
_PATHS: Final = 10_000  # whose failures are counted at most; a path of each record may be asked


class Circuit(msgspec.Struct, frozen=True):
    """The circuit of a source.

    Attributes:
        failures: how many there were in a row.
        since: when the first of them was; None: there is none.
        due: when the next probe may start; None: the circuit is closed.
        pause: the last pause before its jitter.
        probing: whether a probe is in flight.
    """

    failures: int = 0
    since: timedelta | None = None
    due: timedelta | None = None
    pause: timedelta = timedelta(0)
    probing: bool = False

    def admits(self, at: timedelta) -> bool:
        """Whether a request may start now; in an open circuit, as its probe."""
        return self.due is None or (at >= self.due and not self.probing)

    def started(self) -> Circuit:
        """The circuit after an admitted request has started."""
        return self if self.due is None else msgspec.structs.replace(self, probing=True)

    def answered(self) -> Circuit:
        """The circuit after an answer."""
        return Circuit()

    def failed(self, at: timedelta, *, probe: bool, jitter: float) -> Circuit:
        """The circuit after a failed request.

        Args:
            at: the monotonic clock.
            probe: whether the request was the probe.
            jitter: a factor about 1.
        """
        failures, since = self.failures + 1, at if self.since is None else self.since
        if failures < THRESHOLD or (self.due is not None and not probe):
            # A failure of a request that was sent before the circuit opened says nothing new, and must not make the
            # pause longer.
            return msgspec.structs.replace(self, failures=failures, since=since)
        pause = min(max(self.pause * 2, SHORTEST), LONGEST)
        return Circuit(failures, since, due=at + min(pause * jitter, LONGEST), pause=pause)

    def abandoned(self) -> Circuit:
        """The circuit after the probe was cancelled: the next request may be the probe."""
        return msgspec.structs.replace(self, probing=False)
