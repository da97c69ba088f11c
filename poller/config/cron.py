"""Cron expressions of five fields, in UTC, as crontab(5) means them, on top of APScheduler's trigger.

Law: weekdays are numbered as in cron, 0 and 7 for Sunday, 1 for Monday; APScheduler's own numbers begin with Monday,
so it is only ever given names. Where cron and APScheduler mean different moments by the same text, it is refused: cron
takes days that fit the day of the month *or* the weekday where both are given, APScheduler those that fit both.

Slow to import, and few feeds have such an expression: import it where one is met.
"""

from __future__ import annotations

import re
from datetime import UTC
from typing import Final

from apscheduler.triggers.cron import CronTrigger

EXPECTED: Final = (
    'expected five cron fields (minute, hour, day, month, weekday; UTC) that come due, such as "*/5 * * * *"'
)
EITHER_DAY: Final = (
    "expected either a day of the month or a weekday, the other of them *: for days that fit either, use two feeds"
)

_NAMES: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_DAY: Final = rf"[0-7]|{'|'.join(_NAMES)}"
_PART: Final = re.compile(rf"(?:(?P<first>{_DAY})(?:-(?P<last>{_DAY}))?|\*)(?:/(?P<step>[1-7]))?")


def trigger_of(expression: str) -> CronTrigger:
    """The trigger of ``MINUTE HOUR DAY MONTH WEEKDAY``.

    Raises:
        ValueError: it is none; the message says what is expected.
    """
    fields = expression.split()
    if len(fields) != 5:  # noqa: PLR2004  # said in the first line
        raise ValueError(EXPECTED)
    minute, hour, day, month, weekday = fields
    if "*" not in (day, weekday):
        raise ValueError(EITHER_DAY)
    try:
        return CronTrigger(
            minute=minute, hour=hour, day=day, month=month, day_of_week=_named(weekday.lower()), timezone=UTC
        )
    except ValueError:
        raise ValueError(EXPECTED) from None


def _named(weekdays: str) -> str:
    """The field with numbers, ranges and steps written out as names."""
    if weekdays == "*":
        return weekdays
    return ",".join(_NAMES[day] for day in sorted({day for part in weekdays.split(",") for day in _days(part)}))


def _days(part: str) -> set[int]:
    """The weekdays of one part of the list, Sunday as 0; a range may go on past Saturday."""
    match = _PART.fullmatch(part)
    if match is None or (match["step"] and match["first"] and not match["last"]):
        raise ValueError(EXPECTED)
    first = _number(match["first"] or "0")
    last = _number(match["last"] or match["first"] or "6")
    if last < first:
        last += len(_NAMES)
    return {day % len(_NAMES) for day in range(first, last + 1, int(match["step"] or 1))}


def _number(day: str) -> int:
    return int(day) if day.isdecimal() else _NAMES.index(day)
