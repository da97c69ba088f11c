"""Laws of :mod:`poller.config.gaps`: how long a cron expression leaves a feed alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from poller.config.gaps import longest_gap

MONDAY = datetime(2026, 3, 2, 8, 15, tzinfo=UTC)


@pytest.mark.parametrize(
    ("expression", "gap"),
    [
        ("* * * * *", timedelta(minutes=1)),
        ("*/5 * * * *", timedelta(minutes=5)),
        ("0,10 * * * *", timedelta(minutes=50)),
        ("30 4 * * *", timedelta(days=1)),
        ("0 8 * * 1-5", timedelta(days=3)),
        ("*/5 8-17 * * mon-fri", timedelta(days=2, hours=14, minutes=5)),
        ("0 0 1 * *", timedelta(days=31)),
        ("0 12 29 2 *", timedelta(days=4 * 365 + 1 + 4 * 365)),  # 2096 to 2104
    ],
)
def test_nights_weekends_and_months_count(expression: str, gap: timedelta) -> None:
    """Whichever is the longest: between two moments of a day, from one day to the next, or further."""
    assert longest_gap(expression, MONDAY) == gap
