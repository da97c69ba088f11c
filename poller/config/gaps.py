"""How long a cron expression leaves a feed alone, at most and at least.

Slow to import, as :mod:`poller.config.cron` is: import it where such an expression is met.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import islice, pairwise
from typing import Final

from poller.config.cron import trigger_of

_ONE_DAY: Final = timedelta(days=1)
_DAYS: Final = 60  # that it fires on, of those to come
_MOMENTS: Final = 24 * 60


@lru_cache(maxsize=1024)
def longest_gap(expression: str, since: datetime) -> timedelta:
    """The longest time between two of its moments on the next sixty days that it fires on.

    Moments of a day and days are looked at apart, for all moments of two months may be many.

    Args:
        expression: five fields that :func:`poller.config.cron.trigger_of` takes.
        since: where the days begin, UTC.
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
