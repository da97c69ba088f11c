"""Laws of :mod:`poller.http.transport`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.http.transport import http_date, pause_requested

NOON = datetime(2025, 3, 1, 12, tzinfo=UTC)
DAY = 86_400


def at(seconds: float) -> str:
    """An HTTP date so many seconds after noon."""
    return format_datetime(NOON + timedelta(seconds=seconds), usegmt=True)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7),
        (" 1.5 ", 1.5),
        ("0", 0),
        ("-5", 0),
        ("-" + "9" * 5000, 0),
        ("9" * 5000, 36_500 * DAY),
        (at(30), 30),
        (at(-30), 0),
        (at(10**8), 10**8),
        ("Saturday, 01-Mar-25 12:00:30 GMT", 30),
        ("Sat Mar  1 12:00:30 2025", 30),
    ],
)
def test_seconds_and_dates_are_what_they_say(value: str, seconds: float) -> None:
    """A number or a date of any size; what has passed is now."""
    assert pause_requested(value, date=None, now=NOON) == timedelta(seconds=seconds)


@pytest.mark.parametrize("value", [None, "", "soon", "+5", "1e3", "٣٠", "inf", "nan", "5, 10", "--5", "5s"])
def test_nonsense_asks_for_nothing(value: str | None) -> None:
    """Text that is neither is as if it were not there."""
    assert pause_requested(value, date=None, now=NOON) is None


@given(
    st.text() | st.integers().map(str) | st.floats().map(str),
    st.none() | st.text(),
    st.datetimes(timezones=st.just(UTC)),
)
def test_any_text_can_be_read(value: str, date: str | None, now: datetime) -> None:
    """Nothing that is sent raises, and nothing lies before now."""
    pause = pause_requested(value, date=date, now=now)
    assert pause is None or pause >= timedelta(0)


@given(st.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(9999, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001 -- hypothesis takes bounds without a zone
def test_dates_are_read_as_they_were_written(moment: datetime) -> None:
    """To the second, in UTC."""
    assert http_date(format_datetime(moment, usegmt=True)) == moment.replace(microsecond=0)
