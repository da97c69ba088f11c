"""Retry policy: the table from the outcome of an attempt to the next step.

===========================================  ===========================================  ============================
outcome                                      step                                         after the schedule's last wait
===========================================  ===========================================  ============================
``delivered``                                delivered
``endpoint_gone``                            pause the subscription until resumed         the same
``rejected``                                 dead letter
``not_sent``                                 withhold all until they can be sent          the same
``retry``, overloaded, with a wait           pause the endpoint for that long             see below
``retry``, overloaded, without               halve the rate, pause once for a burst       see below
``retry``                                    again, after the schedule's wait             dead letter
===========================================  ===========================================  ============================

Two kinds of waits exist. The *schedule* belongs to an event: its n-th wait follows its n-th failed attempt, and delays
only events of the same record. The *pause* belongs to the endpoint, which gets no request meanwhile. Up to
:data:`PAUSE_CAP`, a pause is as long as the sink requested. If the sink gave no time, :mod:`poller.limits` decides
about rate and pause.

An overload is not the fault of the event, so these refusals do not use up the schedule (``counted`` is false): a sink
that requests pauses of a second would otherwise turn a good event into a dead letter within ten. There is a limit: an
event whose pauses add up to the whole schedule, and to :data:`BUSY_PATIENCE`, becomes a dead letter with the next
refusal.

Signing secrets and credentials belong to this installation. While one is missing, nothing is sent, so nothing is known
about the sink or any event: no attempt counts, and one attempt per :data:`CREDENTIAL_WAIT` checks whether it is back.

**Invariants**

* Jitter only adds: an event is never sent earlier than scheduled. An endpoint gets nothing earlier than it requested,
  unless its pause ends before: what waits for the pause ends with it.
* Pure: random numbers are arguments, and nothing waits here.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import msgspec

from poller.delivery.sinks.base import Outcome, OutcomeKind

PAUSE_FLOOR: Final = timedelta(seconds=1)
PAUSE_CAP: Final = timedelta(hours=24)
BUSY_PATIENCE: Final = timedelta(hours=1)
CREDENTIAL_WAIT: Final = timedelta(seconds=5)

_NO_PAUSE: Final = timedelta(0)
_ATTEMPT: Final = timedelta(minutes=1)  # an attempt takes less


class RetryPolicy(msgspec.Struct, frozen=True):
    """The schedule of retries.

    Attributes:
        schedule: the wait after each failed attempt; after the last wait and attempt, an event is a dead letter.
        jitter: the greatest part of itself by which a wait is lengthened.
    """

    schedule: Sequence[timedelta]
    jitter: float

    def wait(self, attempt: int, chance: float) -> timedelta | None:
        """The wait after the attempt with this number, from 1; None: it was the last.

        Args:
            attempt: counts only attempts that use up the schedule.
            chance: drawn from [0, 1).
        """
        return self.schedule[attempt - 1] * (1 + self.jitter * chance) if attempt <= len(self.schedule) else None

    def longest(self, tries: Tries) -> timedelta:
        """The longest possible wait before the last attempt of ``tries``."""
        place = min(tries.counted - 1, len(self.schedule)) - 1
        own = self.schedule[place] * (1 + self.jitter) if place >= 0 else _NO_PAUSE
        return max(own, tries.paused)

    @property
    def widest(self) -> timedelta:
        """The longest gap between two successive attempts, by schedule or by pause."""
        return max(*self.schedule, PAUSE_CAP) * (1 + self.jitter) + _ATTEMPT

    @property
    def whole(self) -> timedelta:
        """How long the schedule lasts from the first attempt, without jitter."""
        return sum(self.schedule, timedelta(0))


class Tries(msgspec.Struct, frozen=True):
    """The attempts at an event, the current one included; the first is ``Tries()``.

    Attributes:
        attempts: their number.
        counted: the number of attempts that use up the schedule.
        paused: the sum of the pauses after the other attempts.
    """

    attempts: int = 1
    counted: int = 1
    paused: timedelta = timedelta(0)


class Delivered(msgspec.Struct, frozen=True):
    """The sink has accepted the event."""


class Retry(msgspec.Struct, frozen=True):
    """Retry the event after this time; later events of the same record wait with it."""

    after: timedelta


class PauseSink(msgspec.Struct, frozen=True):
    """Send nothing to the sink for this time, then retry the event. If the pause ends before, so does the wait."""

    pause: timedelta

    @property
    def after(self) -> timedelta:
        """The wait of the event, as long as nothing ends the pause."""
        return self.pause


class DeadLetter(msgspec.Struct, frozen=True):
    """Turn the event into a dead letter.

    Attributes:
        reason: one line.
        pause: of the sink, which it has requested; zero: none.
    """

    reason: str
    pause: timedelta = _NO_PAUSE


class PauseSubscription(msgspec.Struct, frozen=True):
    """Pause the subscription until an operator resumes it; its events wait."""

    reason: str


class Withhold(msgspec.Struct, frozen=True):
    """Nothing was sent, because a signing secret or credential is missing: the event stays as it was."""


Step = Delivered | Retry | PauseSink | DeadLetter | PauseSubscription | Withhold


def step_after(
    outcome: Outcome, *, tries: Tries, patience: RetryPolicy, chance: float, busy: timedelta = PAUSE_FLOOR
) -> Step:
    """The step after this outcome.

    Args:
        outcome: of the attempt.
        tries: of this event, the attempt included.
        patience: the subscription's retry policy.
        chance: for the jitter, drawn from [0, 1).
        busy: the pause chosen for an overloaded endpoint that gave no time.
    """
    if outcome.kind is not OutcomeKind.RETRY:
        return _settled(outcome)
    if outcome.wait is not None:
        # Zero means "now"; the lower limit prevents a busy loop.
        pause = min(max(outcome.wait, PAUSE_FLOOR), PAUSE_CAP)
        return _paused(pause, outcome, tries, patience)
    if outcome.is_overloaded:
        return _paused(max(busy, PAUSE_FLOOR), outcome, tries, patience)
    wait = patience.wait(tries.counted, chance)
    return DeadLetter(_reason(outcome, tries)) if wait is None else Retry(wait)


def next_tries(tries: Tries, step: Retry | PauseSink) -> Tries:
    """The counts of the next attempt, after this step."""
    if isinstance(step, PauseSink):
        return Tries(tries.attempts + 1, tries.counted, tries.paused + step.pause)
    return Tries(tries.attempts + 1, tries.counted + 1, tries.paused)


def _settled(outcome: Outcome) -> Step:
    """The step if it does not depend on earlier attempts."""
    match outcome.kind:
        case OutcomeKind.DELIVERED:
            return Delivered()
        case OutcomeKind.ENDPOINT_GONE:
            return PauseSubscription(outcome.error)
        case OutcomeKind.REJECTED:
            return DeadLetter(outcome.error)
    return Withhold()


def _paused(pause: timedelta, outcome: Outcome, tries: Tries, patience: RetryPolicy) -> Step:
    if tries.paused >= max(patience.whole, BUSY_PATIENCE):
        return DeadLetter(_reason(outcome, tries), pause)
    return PauseSink(pause)


def _reason(outcome: Outcome, tries: Tries) -> str:
    ended = f"status {outcome.status}" if outcome.failure is None else f"no answer: {outcome.failure}"
    ended = outcome.error or ended
    return f"given up after {tries.attempts} attempts; the last one: {ended}"
