"""Cron expressions of five fields in UTC, on top of APScheduler's trigger.

**Invariants**

- Weekdays are numbered as in crontab(5): 0 and 7 for Sunday, 1 for Monday. APScheduler's own numbers begin with
  Monday, so it is only given names.
- An expression that cron and APScheduler read differently is refused: if day of the month and weekday are both given,
  cron takes days that fit either, APScheduler days that fit both.
- The module is slow to import and few feeds need it: import it where an expression is met.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice, pairwise
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
        ValueError: it is not valid; the message says what is expected.
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
    """The weekday field with numbers, ranges and steps written as names."""
    if weekdays == "*":
        return weekdays
    return ",".join(_NAMES[day] for day in sorted({day for part in weekdays.split(",") for day in _days(part)}))


def _days(part: str) -> set[int]:
    """The weekdays of one part of the list, Sunday as 0.

    A range may go on past Saturday.
    """
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


_ONE_DAY: Final = timedelta(days=1)
_DAYS: Final = 60  # that it fires on, of those to come
_MOMENTS: Final = 24 * 60


@lru_cache(maxsize=1024)
def longest_gap(expression: str, since: datetime) -> timedelta:
    """The longest time between two of its moments in the coming sixty days with one.

    Moments of a day and days are looked at separately, because two months may have many moments.

    Args:
        expression: five fields that :func:`trigger_of` accepts.
        since: where the days start, UTC.
    """
    moments, days = _apart(expression, since)
    within = max((later - sooner for sooner, later in pairwise(moments)), default=timedelta(0))
    apart = max((later - sooner for sooner, later in pairwise(days)), default=_ONE_DAY)
    return max(within, apart - (moments[-1] - moments[0]))


@lru_cache(maxsize=1024)
def shortest_gap(expression: str, since: datetime) -> timedelta:
    """The shortest time between two of its moments on those days; see :func:`longest_gap`."""
    moments, days = _apart(expression, since)
    apart = min((later - sooner for sooner, later in pairwise(days)), default=_ONE_DAY)
    return min((*(later - sooner for sooner, later in pairwise(moments)), apart - (moments[-1] - moments[0])))


def _apart(expression: str, since: datetime) -> tuple[list[datetime], list[datetime]]:
    minute, hour, day, month, weekday = expression.split()
    midnight = since.replace(hour=0, minute=0, second=0, microsecond=0)
    moments = [
        one for one in islice(_moments(f"{minute} {hour} * * *", midnight), _MOMENTS) if one < midnight + _ONE_DAY
    ]
    return moments, list(islice(_moments(f"0 0 {day} {month} {weekday}", midnight), _DAYS))


def _moments(expression: str, since: datetime) -> Iterator[datetime]:
    trigger, last = trigger_of(expression), None
    while (found := trigger.get_next_fire_time(last, since)) is not None:
        yield found
        last, since = found, found
