"""``Retry-After`` and the dates of HTTP, read with care: the text is whatever a stranger has sent.

The law: a date counts from the answer's own ``Date``, so a wrong clock on either side does no harm; where there is none
it counts from the wall clock. Text that is neither seconds nor a date asks for nothing.

Pure. Which answers pause anything, and for how long at least and at most, is known by those who ask.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

# RFC 9110 knows whole seconds only; some send parts of one, or a number below zero.
_SECONDS: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_FAR: Final = timedelta(days=36_500)


def pause_requested(value: str | None, *, date: str | None, now: datetime) -> timedelta | None:
    """The pause that an answer asks for: none below zero, a hundred years at most; None where it asks for none.

    Args:
        value: its ``Retry-After``: seconds or an HTTP date.
        date: its ``Date``.
        now: the wall clock, UTC; what a date is compared with where ``date`` cannot be read.
    """
    text = (value or "").strip()
    if _SECONDS.fullmatch(text):
        # As a float first: a number of any length is one, and a timedelta is not.
        return timedelta(seconds=min(max(float(text), 0.0), _FAR.total_seconds()))
    until = http_date(text)
    return min(max(until - (http_date(date) or now), timedelta(0)), _FAR) if until else None


def http_date(text: str | None) -> datetime | None:
    """A date of RFC 9110 in any of its three spellings, UTC; None for anything else."""
    try:
        moment = parsedate_to_datetime(text or "")
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError, TypeError, IndexError):
        return None  # the parser of the standard library raises any of these on text from outside
