"""The demo's lines: an event as it comes from its stream, and the same event as it comes by webhook.

Both have the same columns, so that the eye finds the one below the other; pure.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from poller.cli.lines import Event, line_of
from poller.sandbox.resources import RESOURCES

BY_WEBHOOK: Final = "by webhook, signature ok"
WIDTH: Final = max(map(len, (*RESOURCES, BY_WEBHOOK)))
"""Of the second column, in characters."""

Line = list[tuple[str, str]]


def delay_of(event: Event, at: datetime) -> float:
    """Seconds from the change to ``at``."""
    return max(0.0, (at - datetime.fromisoformat(event.time)).total_seconds())


def stream_line(resource: str, event: Event, *, at: datetime) -> Line:
    """An event that was read from its stream at ``at``."""
    *start, change = line_of(event, resource, feed_width=WIDTH)
    return [*start, (f"{delay_of(event, at):.2f} s  ", "dim"), change]


def webhook_line(event: Event, *, at: datetime, after: float | None) -> Line:
    """An event that came by webhook at ``at``, ``after`` so many seconds; None where its stream was not read yet."""
    _, _, *known, _ = line_of(event, "")
    behind = "" if after is None else f", {after * 1000:.0f} ms after the stream"
    came = [(f"{at:%H:%M:%S}.{at.microsecond // 1000:03}", "dim"), (f"  {BY_WEBHOOK:<{WIDTH}}  ", "cyan")]
    return [*came, *known, (f"{delay_of(event, at):.2f} s{behind}", "dim")]
