"""The log's one event for each attempt at each event."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import structlog

from poller.delivery.attempts import DeadLetter, Delivered, PauseSubscription
from poller.delivery.drafting import Told
from poller.delivery.outcome import Outcome

_log = structlog.get_logger("poller.delivery")
_spoken = logging.getLogger("poller.delivery")  # what structlog writes to; asking it costs next to nothing


def report(told: Sequence[Told], outcome: Outcome | None, *, feed: str, subscription: str) -> None:
    """Tell what became of these; ``outcome`` is None where nothing could be sent."""
    if not _spoken.isEnabledFor(logging.DEBUG):
        told = [one for one in told if not isinstance(one.step, Delivered)]
        if not told:
            return
    answered = (
        {"status": outcome.status, "failure": outcome.failure, "seconds": round(outcome.seconds, 3)} if outcome else {}
    )
    for one in told:
        log = _log.bind(
            feed=feed,
            subscription=subscription,
            entry=one.entry,
            id=one.event,
            attempt=one.attempt,
            **answered,
            step=type(one.step).__name__.lower(),
        )
        if isinstance(one.step, Delivered):
            log.debug("attempt")
        elif isinstance(one.step, DeadLetter | PauseSubscription):
            log.error("attempt", reason=one.step.reason)
        else:
            log.warning("attempt", error=outcome.text if outcome else None)
