"""Attempts at sinks, by subscription.

Law: what an attempt costs here is a microsecond or two: the series of a subscription are looked up once. One that is
not delivered here any more has no series here.
"""

from __future__ import annotations

from typing import Final, Literal

from poller.telemetry.catalogue import counter, histogram

Step = Literal["delivered", "retried", "dead_letter", "subscription_paused", "sink_paused", "withheld"]
"""What follows from an attempt at an event."""

STEPS: Final[tuple[Step, ...]] = (
    "delivered",
    "retried",
    "dead_letter",
    "subscription_paused",
    "sink_paused",
    "withheld",
)

_ATTEMPTS: Final = counter(
    "poller_attempts_total",
    f"Attempts at events by what followed: {', '.join(STEPS[:-1])} or {STEPS[-1]}.",
    "subscription",
    "outcome",
)
_ATTEMPT_SECONDS: Final = histogram(
    "poller_attempt_duration_seconds",
    "How long requests to sinks took, in seconds; one carries a whole batch.",
    "subscription",
    bounds=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15),
)
_DELAY: Final = histogram(
    "poller_delivery_delay_seconds",
    "From an event's recordedtime to its 2xx, in seconds, without what is delivered once more.",
    "subscription",
    bounds=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30, 300, 3600, 86400),
)


class AttemptSeries:
    """The series of one subscription."""

    __slots__ = ("delayed", "requested", "steps")

    def __init__(self, subscription: str) -> None:
        self.steps = {step: _ATTEMPTS.labels(subscription, step) for step in STEPS}
        self.requested = _ATTEMPT_SECONDS.labels(subscription).observe
        self.delayed = _DELAY.labels(subscription).observe


_known: dict[str, AttemptSeries] = {}


def attempts_of(subscription: str) -> AttemptSeries:
    """The series of a subscription that is delivered here."""
    found = _known.get(subscription)
    if found is None:
        found = _known[subscription] = AttemptSeries(subscription)
    return found


def no_attempts_of(subscription: str) -> None:
    """It is not delivered here any more."""
    if _known.pop(subscription, None) is not None:
        for step in STEPS:
            _ATTEMPTS.remove(subscription, step)
        _ATTEMPT_SECONDS.remove(subscription)
        _DELAY.remove(subscription)
