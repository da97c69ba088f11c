"""How long an API asks to be left alone: ``Retry-After``, read with care.

The law: whatever the header holds, the answer is between :data:`FLOOR` and :data:`CAP`. A date counts from the
answer's own ``Date``, so a wrong clock on either side does no harm; where there is none it counts from the wall clock.

Which answers pause anything is not decided here; see :mod:`poller.source.retrying`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

FLOOR: Final = timedelta(seconds=1)
CAP: Final = timedelta(hours=1)

# RFC 9110 knows whole seconds only; some APIs send parts of one.
_SECONDS: Final = re.compile(r"[0-9]+(\.[0-9]+)?")


def pause_asked(value: str | None, *, date: str | None, now: datetime) -> timedelta:
    """The pause that an answer asks for.

    Args:
        value: its ``Retry-After``: seconds or an HTTP date. None, text, nothing or a moment that has passed: the floor.
        date: its ``Date``.
        now: the wall clock, UTC; what a date is compared with where ``date`` cannot be read.
    """
    text = (value or "").strip()
    if _SECONDS.fullmatch(text):
        # As a float first: a number of any length is one, and a timedelta is not.
        return _bounded(timedelta(seconds=min(float(text), CAP.total_seconds())))
    until = http_date(text)
    return _bounded(until - (http_date(date) or now)) if until else FLOOR


def http_date(text: str | None) -> datetime | None:
    """A date of RFC 9110 in any of its three spellings, UTC; None for anything else."""
    try:
        moment = parsedate_to_datetime(text or "")
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError, TypeError, IndexError):
        return None  # the parser of the standard library raises any of these on text from outside


def _bounded(span: timedelta) -> timedelta:
    return min(max(span, FLOOR), CAP)
