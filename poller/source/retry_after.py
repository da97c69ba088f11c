"""How long an API asks to be left alone, within bounds.

The law: whatever ``Retry-After`` holds, the answer is between :data:`FLOOR` and :data:`CAP`.

Which answers pause anything is not decided here; see :mod:`poller.source.retrying`.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from poller.retry_after import pause_requested

FLOOR: Final = timedelta(seconds=1)
CAP: Final = timedelta(hours=1)


def pause_asked(value: str | None, *, date: str | None, now: datetime) -> timedelta:
    """The pause that an answer asks for; nothing, nonsense or a moment that has passed: the floor.

    Args:
        value: its ``Retry-After``.
        date: its ``Date``.
        now: the wall clock, UTC; what a date is compared with where ``date`` cannot be read.
    """
    return min(max(pause_requested(value, date=date, now=now) or FLOOR, FLOOR), CAP)
