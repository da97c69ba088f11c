"""What follows from an attempt: the retry policy, as a table from outcome to step.

===========================================  ===========================================  ============================
outcome                                      step                                         after the schedule's last wait
===========================================  ===========================================  ============================
``delivered``                                delivered
``endpoint_gone``                            pause the subscription until resumed         the same
``rejected``                                 dead letter
``not_sent``                                 withhold all until it can be sent            the same
``retry``, overloaded, with a wait           pause the endpoint for that long             see below
``retry``, overloaded, without               halve the rate, pause once for a burst       see below
``retry``                                    again, after the schedule's wait             dead letter
===========================================  ===========================================  ============================

Three spans are kept apart. The *schedule* belongs to an event: its n-th wait follows its n-th failed attempt, and holds
back only events of the same record. The *pause* belongs to the endpoint: nothing is sent to it meanwhile, so it is as
long as the sink asked for, never less below :data:`PAUSE_CAP`. Where the sink did not say for how long,
:mod:`poller.limits` finds out how fast it may be asked, and how long it is paused meanwhile.

An overloaded sink says nothing against the event, so its refusals do not use up the schedule (``counted`` is false): a
sink that asks for a second at a time would make a dead letter of a good event within ten. It ends all the same: an
event whose pauses add up to the whole schedule becomes a dead letter with the next one; where the pauses are our own
choice, not before they add up to :data:`BUSY_PATIENCE`.

The secret that signs a request, or proves who sends it, belongs to this installation. While it is missing nothing is
sent, so nothing is learnt of the sink or of any event: no event is tried, and one attempt in :data:`CREDENTIAL_WAIT`
finds out whether it is back.

**Invariants**

* Jitter only adds: an event is at worst tried later than the schedule says, and an endpoint later than it asked.
* Pure: chance is an argument, and nothing waits here.
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
    """How often an event is tried.

    Attributes:
        schedule: the wait after each failed attempt; after the last one an event is given up. At least one.
        jitter: up to which part of itself a wait is made longer.
    """

    schedule: Sequence[timedelta]
    jitter: float

    def wait(self, attempt: int, chance: float) -> timedelta | None:
        """The wait after the attempt of this number, from 1; None where it was the last.

        Args:
            attempt: counts only attempts that use up the schedule.
            chance: drawn from [0, 1).
        """
        return self.schedule[attempt - 1] * (1 + self.jitter * chance) if attempt <= len(self.schedule) else None

    def longest(self, tries: Tries) -> timedelta:
        """The longest possible wait before the last attempt of ``tries``."""
        place = min(tries.counted - 1, len(self.schedule)) - 1
        own = self.schedule[place] * (1 + self.jitter) if place >= 0 else _NO_PAUSE
        return max(own, tries.paused + self.schedule[0] * self.jitter)

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
        attempts: in all.
        counted: those that use up the schedule.
        paused: the pauses that the others have met, in all.
    """

    attempts: int = 1
    counted: int = 1
    paused: timedelta = timedelta(0)


class Delivered(msgspec.Struct, frozen=True):
    """The sink has it."""


class Retry(msgspec.Struct, frozen=True):
    """Worth another attempt ``after`` a while; later events of the same record wait with it."""

    after: timedelta


class PauseSink(msgspec.Struct, frozen=True):
    """Nothing goes to the sink for ``pause``, whatever the subscription or record; then it is worth another attempt.

    Attributes:
        pause: of the sink.
        after: how long the event itself waits; as long as the pause or longer.
    """

    pause: timedelta
    after: timedelta


class DeadLetter(msgspec.Struct, frozen=True):
    """Given up.

    Attributes:
        reason: one line.
        pause: what the sink has asked for all the same; zero for nothing.
    """

    reason: str
    pause: timedelta = _NO_PAUSE


class PauseSubscription(msgspec.Struct, frozen=True):
    """The sink wants nothing more of this: the subscription rests until an operator resumes it; its events are kept."""

    reason: str


class Withhold(msgspec.Struct, frozen=True):
    """Nothing was sent, nor can be before what signs or proves it can be had: the event stays as it was."""


Step = Delivered | Retry | PauseSink | DeadLetter | PauseSubscription | Withhold


def step_after(
    outcome: Outcome, *, tries: Tries, patience: RetryPolicy, chance: float, busy: timedelta = PAUSE_FLOOR
) -> Step:
    """What follows from this outcome.

    Args:
        outcome: how the attempt ended.
        tries: of this event, the attempt included.
        patience: the subscription's.
        chance: for the jitter, drawn from [0, 1).
        busy: the pause that the endpoint is in because of its load, where it did not say for how long.
    """
    if outcome.kind is not OutcomeKind.RETRY:
        return _settled(outcome)
    if outcome.wait is not None:
        # Zero means "now"; the floor keeps that from becoming a loop without a breath.
        pause = min(max(outcome.wait, PAUSE_FLOOR), PAUSE_CAP)
        return _paused(pause, outcome, tries, patience, most=patience.whole, chance=chance)
    if outcome.is_overloaded:
        most = max(patience.whole, BUSY_PATIENCE)
        return _paused(max(busy, PAUSE_FLOOR), outcome, tries, patience, most=most, chance=chance)
    wait = patience.wait(tries.counted, chance)
    return DeadLetter(_reason(outcome, tries)) if wait is None else Retry(wait)


def next_tries(tries: Tries, step: Retry | PauseSink) -> Tries:
    """What the attempt after this step is."""
    if isinstance(step, PauseSink):
        return Tries(tries.attempts + 1, tries.counted, tries.paused + step.pause)
    return Tries(tries.attempts + 1, tries.counted + 1, tries.paused)


def _settled(outcome: Outcome) -> Step:
    """What follows whatever was tried before."""
    match outcome.kind:
        case OutcomeKind.DELIVERED:
            return Delivered()
        case OutcomeKind.ENDPOINT_GONE:
            return PauseSubscription(outcome.error)
        case OutcomeKind.REJECTED:
            return DeadLetter(outcome.error)
    return Withhold()


def _paused(
    pause: timedelta, outcome: Outcome, tries: Tries, patience: RetryPolicy, *, most: timedelta, chance: float
) -> Step:
    if tries.paused >= most:
        return DeadLetter(_reason(outcome, tries), pause)
    # Spread over the jitter of a first wait: else all that met the pause would come back in the same instant.
    return PauseSink(pause, pause + patience.schedule[0] * patience.jitter * chance)


def _reason(outcome: Outcome, tries: Tries) -> str:
    ended = f"status {outcome.status}" if outcome.failure is None else f"no answer: {outcome.failure}"
    ended = outcome.error or ended
    return f"given up after {tries.attempts} attempts; the last one: {ended}"
