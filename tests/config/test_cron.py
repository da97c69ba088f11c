"""Cron expressions have the same meaning as in cron."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from poller.config.cron import EITHER_DAY, EXPECTED, longest_gap, trigger_of

A_SUNDAY = datetime(2026, 3, 1, tzinfo=UTC)
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


def weekdays(field: str) -> str:
    """The days of a week, from Sunday on, on which a trigger is due at six."""
    trigger = trigger_of(f"0 6 * * {field}")
    moments = [A_SUNDAY + timedelta(days=day, hours=6) for day in range(7)]
    due = [trigger.get_next_fire_time(None, moment) == moment for moment in moments]
    return " ".join(day for day, is_due in zip(DAYS, due, strict=True) if is_due)


@pytest.mark.parametrize(
    ("field", "days"),
    [
        *((str(number), name) for number, name in enumerate(DAYS)),
        ("7", "sun"),
        ("1-5", "mon tue wed thu fri"),
        ("5-7", "sun fri sat"),
        ("0-7", " ".join(DAYS)),
        ("6-1", "sun mon sat"),
        ("7-2", "sun mon tue"),
        ("0,3,6", "sun wed sat"),
        ("1,3-5", "mon wed thu fri"),
        ("*/2", "sun tue thu sat"),
        ("1-5/2", "mon wed fri"),
        ("5-1/2", "sun fri"),
        ("MON-fri", "mon tue wed thu fri"),
        ("sat-mon", "sun mon sat"),
        ("sun", "sun"),
        ("*", " ".join(DAYS)),
    ],
)
def test_weekdays(field: str, days: str) -> None:
    """Law: 0 and 7 are Sunday and 1 is Monday, alone and in lists, ranges (also past Saturday) and steps."""
    assert weekdays(field) == days


@pytest.mark.parametrize(
    "field", ["8", "-1", "1-", "1-8", "3/2", "*/0", "*/8", "1,", ",", "mo", "٣", "2nd", "?", "1#2"]
)
def test_no_weekday(field: str) -> None:
    """Law: an invalid weekday is refused, never read as another one."""
    with pytest.raises(ValueError, match="expected five cron fields"):
        trigger_of(f"0 6 * * {field}")


@pytest.mark.parametrize(
    "expression", ["", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "x * * * *"]
)
def test_no_expression(expression: str) -> None:
    """Law: an expression without five valid fields is refused in the words of the configuration."""
    with pytest.raises(ValueError, match="expected five cron fields") as refused:
        trigger_of(expression)
    assert str(refused.value) == EXPECTED


@pytest.mark.parametrize("expression", ["0 6 13 * 5", "0 6 1-7 * 1", "0 6 1 * 0-7", "0 6 */2 * 1"])
def test_both_kinds_of_days(expression: str) -> None:
    """Law: a day of the month with a weekday is refused: cron means "either" by it, others "both"."""
    with pytest.raises(ValueError, match="either a day of the month or a weekday") as refused:
        trigger_of(expression)
    assert str(refused.value) == EITHER_DAY


def test_utc() -> None:
    """Law: moments are in UTC."""
    due = trigger_of("30 4 * * *").get_next_fire_time(None, A_SUNDAY)
    assert due == datetime(2026, 3, 1, 4, 30, tzinfo=UTC)
    assert due.utcoffset() == timedelta(0)


# The longest gap between two polls of a cron expression.

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
    """Law: the longest gap may lie within a day or span nights, weekends, months or years."""
    assert longest_gap(expression, MONDAY) == gap
