"""What is told of each attempt at each event: one event in the log, and the counts.

Law: what was delivered is counted and, unless somebody wants details, no more; so a delivery that goes well costs
microseconds here. The same goes for what was not even sent, for the subscription tells of that itself. Nothing that
the sink has said becomes a label.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import structlog

from poller.delivery.attempts import DeadLetter, Delivered, PauseSink, PauseSubscription, Retry, Withhold
from poller.delivery.attempts import Step as Next
from poller.delivery.drafting import Told
from poller.delivery.outcome import Failure, Outcome
from poller.telemetry.attempts import AttemptSeries, Step

_log = structlog.get_logger("poller.delivery")
_spoken = logging.getLogger("poller.delivery")  # what structlog writes to; asking it costs next to nothing

STEPS: Final[Mapping[type[Next], Step]] = {
    Delivered: "delivered",
    Retry: "retried",
    PauseSink: "sink_paused",
    DeadLetter: "dead_letter",
    PauseSubscription: "subscription_paused",
    Withhold: "withheld",
}
"""What a step is called in logs and metrics."""

_DETAILS: Final = (Delivered, Withhold)


def count(told: Sequence[Told], outcome: Outcome | None, series: AttemptSeries, *, now: datetime) -> None:
    """Count these, which one request carried; ``outcome`` is None where nothing could be sent."""
    if outcome is not None and outcome.failure is not Failure.CREDENTIAL:  # then there was no request
        series.requested(outcome.seconds)
    counts: dict[type[Next], int] = {}
    for one in told:
        kind = type(one.step)
        counts[kind] = counts.get(kind, 0) + 1
        if kind is Delivered and (delay := _delay(one, now)) is not None:
            series.delayed(delay)
    for kind, events in counts.items():  # a batch may hold hundreds
        series.steps[STEPS[kind]].inc(events)


def report(
    told: Sequence[Told], outcome: Outcome | None, *, feed: str, subscription: str, sink: str, now: datetime
) -> None:
    """Tell what became of these in the log.

    Args:
        told: the events that one request carried, each with what follows.
        outcome: of the request; None where nothing could be sent.
        feed: ``SOURCE/NAME``.
        subscription: its id.
        sink: its host.
        now: when it ended, UTC.
    """
    if not _spoken.isEnabledFor(logging.DEBUG):
        told = [one for one in told if not isinstance(one.step, _DETAILS)]
        if not told:
            return
    shared: dict[str, Any] = {"feed": feed, "subscription": subscription, "sink": sink}
    if outcome:
        answered = {"status": outcome.status, "failure": outcome.failure, "seconds": round(outcome.seconds, 3)}
        shared |= {name: value for name, value in answered.items() if value is not None}
    for one in told:
        log = _log.bind(step=STEPS[type(one.step)], **shared, **_of(one, now))
        if isinstance(one.step, Delivered):
            log.debug("attempt")
        elif isinstance(one.step, Withhold):
            log.debug("attempt", error=outcome.text if outcome else None)
        elif isinstance(one.step, DeadLetter | PauseSubscription):
            log.error("attempt", reason=one.step.reason)
        else:
            log.warning("attempt", error=outcome.text if outcome else None)


def _of(one: Told, now: datetime) -> dict[str, Any]:
    fields: dict[str, Any] = {"id": one.event, "entry": one.entry, "attempt": one.attempt, "bytes": one.size}
    delay = _delay(one, now)
    if delay is not None:
        fields["delay_seconds"] = round(delay, 3)
    if isinstance(one.step, Retry | PauseSink):
        fields["next_seconds"] = round(one.step.after.total_seconds(), 3)
    if isinstance(one.step, PauseSink):
        fields["pause_seconds"] = round(one.step.pause.total_seconds(), 3)
    return fields


def _delay(one: Told, now: datetime) -> float | None:
    """Seconds since the event was published; never less than 0, for clocks differ."""
    if one.recorded is None:
        return None
    try:
        return max((now - datetime.fromisoformat(one.recorded)).total_seconds(), 0.0)
    except (ValueError, TypeError):  # somebody else has written it, or without a zone
        return None
