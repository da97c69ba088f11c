"""Outcomes as a webhook's answers give them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from poller.delivery.sinks.base import Failure, Outcome, OutcomeKind
from poller.delivery.sinks.webhook import meaning_of
from tests.harness.clock import FakeClock

NOON: Final = datetime(2025, 3, 1, 12, tzinfo=UTC)


def answered(status: int, *, retry_after: str | None = None, date: str | None = None, **fields: Any) -> Outcome:
    """The outcome of an answer with this status, received at noon."""
    given = {"Retry-After": retry_after, "Date": date}
    headers = {name: text for name, text in given.items() if text}
    kind, wait, is_overloaded = meaning_of(status, headers, FakeClock(NOON))
    return Outcome(kind, wait=wait, is_overloaded=is_overloaded, status=status, **fields)


def unanswered(failure: Failure, error: str = "", *, seconds: float = 0.0) -> Outcome:
    """The outcome of an attempt that failed like this, without an answer."""
    kind = OutcomeKind.NOT_SENT if failure is Failure.CREDENTIAL else OutcomeKind.RETRY
    return Outcome(kind, error=error, failure=failure, seconds=seconds)
