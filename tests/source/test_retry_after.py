"""Laws of :mod:`poller.source.retry_after`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.source.retry_after import CAP, FLOOR, pause_asked

NOON = datetime(2025, 3, 1, 12, tzinfo=UTC)


def at(seconds: float, start: datetime = NOON) -> str:
    """An HTTP date so many seconds after the start."""
    return format_datetime(start + timedelta(seconds=seconds), usegmt=True)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7),
        (" 7 ", 7),
        ("1.5", 1.5),
        ("0", 1),
        ("0.2", 1),
        ("007", 7),
        ("3600", 3600),
        ("3601", 3600),
        (str(10**9), 3600),
        ("9" * 5000, 3600),
        ("-5", 1),
        ("+5", 1),
        ("1e3", 1),
        ("٣٠", 1),
        ("soon", 1),
        ("", 1),
        (None, 1),
        ("inf", 1),
        ("nan", 1),
        ("5, 10", 1),
        (at(30), 30),
        (at(0), 1),
        (at(-3600), 1),
        (at(10**8), 3600),
        ("Saturday, 01-Mar-25 12:00:30 GMT", 30),
        ("Sat Mar  1 12:00:30 2025", 30),
        ("Sat, 01 Mar 2025 12:00:30 -0000", 30),
        ("Sat, 99 Mar 2025 12:00:30 GMT", 1),
        ("Sat, 01 Mar 99999 12:00:30 GMT", 1),
    ],
)
def test_what_is_sent_is_read_between_floor_and_cap(value: str | None, seconds: float) -> None:
    """Seconds and dates are what they say, within the bounds; the past and nonsense are the floor, years the cap."""
    assert pause_asked(value, date=None, now=NOON) == timedelta(seconds=seconds)


@pytest.mark.parametrize("wrong", [-7200, 0, 7200])
def test_a_date_counts_from_the_answers_own_date(wrong: int) -> None:
    """Whatever our clock says: half a minute after the answer's Date is half a minute."""
    now = NOON + timedelta(seconds=wrong)
    assert pause_asked(at(30), date=at(0), now=now) == timedelta(seconds=30)
    assert pause_asked(at(30), date="yesterday", now=NOON) == timedelta(seconds=30)


@given(
    st.text() | st.integers().map(str) | st.floats().map(str),
    st.none() | st.text(),
    st.datetimes(timezones=st.just(UTC)),
)
def test_nothing_that_is_sent_breaks_the_bounds(value: str, date: str | None, now: datetime) -> None:
    """Any text at all is a pause between floor and cap."""
    assert FLOOR <= pause_asked(value, date=date, now=now) <= CAP
