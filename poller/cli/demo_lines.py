"""The demo's lines: an event as it comes from its stream, and the same event as it comes by webhook.

Both have the same columns, so that the eye finds the one below the other. On the usual 80 there is room for what has
changed: so little of an id is shown, whole seconds, and how long it took where nothing else is to be said. Pure.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from poller.cli.lines import Event, what_changed, whose
from poller.sandbox.history import RESOURCES

BY_WEBHOOK: Final = "by webhook, signature ok"
WIDTH: Final = max(map(len, (*RESOURCES, BY_WEBHOOK)))
"""Of the second column, in characters."""

_SHOWN_OF_SUBJECT: Final = 4

Line = list[tuple[str, str]]


def delay_of(event: Event, at: datetime) -> float:
    """Seconds from the change to ``at``."""
    return max(0.0, (at - datetime.fromisoformat(event.time)).total_seconds())


def stream_line(resource: str, event: Event, *, at: datetime) -> Line:
    """An event that was read from its stream at ``at``: what has changed."""
    return [*_start(event, (resource, ""), at), (what_changed(event.data), "")]


def webhook_line(event: Event, *, at: datetime, after: float | None) -> Line:
    """An event that came by webhook at ``at``, ``after`` so many seconds; None where its stream was not read yet."""
    behind = "" if after is None else f", {after * 1000:.0f} ms after the stream"
    return [*_start(event, (BY_WEBHOOK, "cyan"), at), (f"{delay_of(event, at):.2f} s{behind}", "dim")]


def _start(event: Event, way: tuple[str, str], at: datetime) -> Line:
    name, style = way
    return [(f"{at:%H:%M:%S}", "dim"), (f"  {name:<{WIDTH}}  ", style), *whose(event, _SHOWN_OF_SUBJECT)]
