"""What follows from an attempt: the policy of delivery as a table.

Theory of operation
-------------------
==========================================  ===========================================  =============================
outcome                                     step                                         after the schedule's last wait
==========================================  ===========================================  =============================
2xx                                         delivered
410                                         pause the subscription, for good
415                                         the same: the sink does not take the format
429 or 503 with ``Retry-After``             pause the sink for so long                   see below
429 without                                 halve the rate, pause once for a burst       see below
what signs or proves it cannot be had       withhold all until it can: it was not sent  the same
any other status, no answer                 again, after the schedule's wait             dead letter
==========================================  ===========================================  =============================

Three spans are kept apart. The *schedule* is an event's own: its n-th wait follows its n-th failed attempt, and holds
back nothing but events of the same record. The *pause* is the sink's: nothing at all is sent in it, so it is as long
as the sink has asked for, never less below :data:`PAUSE_CAP`. Without ``Retry-After`` a sink has not said how long:
:mod:`poller.limits` finds out how fast it may be asked, and how long it is paused meanwhile.

A 429, or a 503 with ``Retry-After``, is about the sink's load and not about the event, so it does not use up the
schedule (``counted`` is false): a sink that asks for a second at a time would make a dead letter of a good event within
ten. An end it has all the same: an event whose pauses add up to the whole schedule is given up with the next one; where
the pauses are our own choice, not before they add up to :data:`BUSY_PATIENCE`.

What signs a request, or proves who sends it, is ours. While it cannot be had nothing is sent, so nothing is learnt of
the sink or of any event: none is tried, none waits by itself, and one attempt in :data:`CREDENTIAL_WAIT` finds out.

Jitter only ever adds. An event is at worst tried later than the schedule says, and a sink later than it has asked.

Pure: chance and the wall clock are arguments, and nothing waits here.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Final

import msgspec

from poller.delivery.outcome import Failure, Outcome
from poller.http.transport import pause_requested

PAUSE_FLOOR: Final = timedelta(seconds=1)
PAUSE_CAP: Final = timedelta(hours=24)
BUSY_PATIENCE: Final = timedelta(hours=1)
CREDENTIAL_WAIT: Final = timedelta(seconds=5)

_NO_PAUSE: Final = timedelta(0)
_ATTEMPT: Final = timedelta(minutes=1)  # an attempt takes less
_LAST_WORDS: Final[dict[int | None, str]] = {
    HTTPStatus.GONE: "the sink answered 410: it is gone for good",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "the sink answered 415: it does not take requests of this mode",
}
_BUSY: Final = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})


class Patience(msgspec.Struct, frozen=True):
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
        """What may be waited at most before the attempt that ``tries`` ends with, whatever ended the one before."""
        place = min(tries.counted - 1, len(self.schedule)) - 1
        own = self.schedule[place] * (1 + self.jitter) if place >= 0 else _NO_PAUSE
        return max(own, tries.paused + self.schedule[0] * self.jitter)

    @property
    def widest(self) -> timedelta:
        """What lies at most between two attempts that follow each other, be it by the schedule or by a pause."""
        return max(*self.schedule, PAUSE_CAP) * (1 + self.jitter) + _ATTEMPT

    @property
    def whole(self) -> timedelta:
        """How long the schedule lasts from the first attempt, without jitter."""
        return sum(self.schedule, timedelta(0))


class Tries(msgspec.Struct, frozen=True):
    """What has been tried with an event, the attempt at hand included; the first one is ``Tries()``.

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
    outcome: Outcome,
    *,
    tries: Tries,
    patience: Patience,
    chance: float,
    now: datetime,
    busy: timedelta = PAUSE_FLOOR,
) -> Step:
    """What follows from this outcome.

    Args:
        outcome: how the attempt ended.
        tries: of this event, the attempt included.
        patience: the subscription's.
        chance: for the jitter, drawn from [0, 1).
        now: the store's clock, UTC.
        busy: the pause that the sink is in because of a 429 that did not say how long.
    """
    if outcome.success:
        return Delivered()
    if outcome.status in _LAST_WORDS:
        return PauseSubscription(_LAST_WORDS[outcome.status])
    if outcome.failure is Failure.CREDENTIAL:
        return Withhold()
    asked = pause_asked(outcome, now)
    if asked is not None:
        return _paused(asked, outcome, tries, patience, most=patience.whole, chance=chance)
    if outcome.status == HTTPStatus.TOO_MANY_REQUESTS:
        most = max(patience.whole, BUSY_PATIENCE)
        return _paused(max(busy, PAUSE_FLOOR), outcome, tries, patience, most=most, chance=chance)
    wait = patience.wait(tries.counted, chance)
    return DeadLetter(_reason(outcome, tries)) if wait is None else Retry(wait)


def next_tries(tries: Tries, step: Retry | PauseSink) -> Tries:
    """What the attempt after this step is."""
    if isinstance(step, PauseSink):
        return Tries(tries.attempts + 1, tries.counted, tries.paused + step.pause)
    return Tries(tries.attempts + 1, tries.counted + 1, tries.paused)


def is_unexplained(outcome: Outcome, now: datetime) -> bool:
    """Whether the sink has refused it for its load, and not said for how long."""
    return outcome.status == HTTPStatus.TOO_MANY_REQUESTS and pause_asked(outcome, now) is None


def pause_asked(outcome: Outcome, now: datetime) -> timedelta | None:
    """The pause that the sink has asked for, within the bounds; None where it has not, or where that is no time."""
    if outcome.status not in _BUSY:
        return None
    asked = pause_requested(outcome.retry_after, date=outcome.date, now=now)
    # Zero and what has passed mean "now"; the floor keeps that from becoming a loop without a breath.
    return None if asked is None else min(max(asked, PAUSE_FLOOR), PAUSE_CAP)


def _paused(
    pause: timedelta, outcome: Outcome, tries: Tries, patience: Patience, *, most: timedelta, chance: float
) -> Step:
    if tries.paused >= most:
        return DeadLetter(_reason(outcome, tries), pause)
    # Spread over the jitter of a first wait: else all that met the pause would come back in the same instant.
    return PauseSink(pause, pause + patience.schedule[0] * patience.jitter * chance)


def _reason(outcome: Outcome, tries: Tries) -> str:
    ended = outcome.text or (f"status {outcome.status}" if outcome.failure is None else f"no answer: {outcome.failure}")
    return f"given up after {tries.attempts} attempts; the last one: {ended}"
