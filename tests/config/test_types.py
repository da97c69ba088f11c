"""Units: durations, sizes and shares are read exactly, and invalid ones are refused."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.config.types import (
    LARGEST,
    LONGEST,
    Threshold,
    format_duration,
    format_share,
    format_size,
    parse_duration,
    parse_share,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("500ms", timedelta(milliseconds=500)),
        ("30s", timedelta(seconds=30)),
        ("5m", timedelta(minutes=5)),
        ("24h", timedelta(days=1)),
        ("7d", timedelta(days=7)),
        ("1.5h", timedelta(minutes=90)),
        ("0s", timedelta(0)),
        (30, timedelta(seconds=30)),
        (0.1, timedelta(milliseconds=100)),
    ],
)
def test_durations(text: object, meant: timedelta) -> None:
    """Every spelling of a duration in the contract is read without a rounding error."""
    assert parse_duration(text) == meant


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("64KiB", 65536),
        ("16MiB", 16 * 1024**2),
        ("1GiB", 1024**3),
        ("1.5KiB", 1536),
        ("64KB", 64000),
        (12, 12),
        (2.0, 2),
    ],
)
def test_sizes(text: object, meant: int) -> None:
    """KiB counts in 1024, KB in 1000, a number in bytes."""
    assert parse_size(text) == meant


@pytest.mark.parametrize(
    ("text", "meant"),
    [("10%", Threshold(percent=10.0)), (50, Threshold(records=50)), (0, Threshold(records=0)), ("off", Threshold())],
)
def test_shares(text: object, meant: Threshold) -> None:
    """A share, a number of records and no bound at all are three different things."""
    assert parse_share(text) == meant
    assert meant.off == (text == "off")


_NONSENSE: list[object] = ["", " ", "-1s", "1", "five", "1e3s", "٣s", "NaN", "inf", True, None, [], {}, "1s\n"]


@pytest.mark.parametrize(
    "value", [*_NONSENSE, -1, -0.5, float("nan"), float("inf"), 1e300, 10**400, "3651d", "9" * 20 + "d"]
)
def test_refused_durations(value: object) -> None:
    """A negative, infinite, too large or invalid duration is refused with what is expected."""
    with pytest.raises(ValueError, match=r"^expected a duration "):
        parse_duration(value)


@pytest.mark.parametrize(
    "value", [*_NONSENSE, 0, -1, 1.5, float("nan"), float("inf"), 10**400, "0KiB", "0.3B", "1025TiB"]
)
def test_refused_sizes(value: object) -> None:
    """A size is a whole number of bytes, at least one."""
    with pytest.raises(ValueError, match=r"^expected a size "):
        parse_size(value)


@pytest.mark.parametrize("value", [*_NONSENSE, -1, 0.5, 2**53, "0%", "101%", "-5%", "OFF"])
def test_refused_shares(value: object) -> None:
    """A share of nothing or of more than the whole is refused."""
    with pytest.raises(ValueError, match=r"^expected a "):
        parse_share(value)


@given(st.timedeltas(min_value=timedelta(0), max_value=LONGEST))
def test_durations_come_back(duration: timedelta) -> None:
    """Writing a duration and reading it loses nothing."""
    assert parse_duration(format_duration(duration)) == duration


@given(st.integers(1, LARGEST))
def test_sizes_come_back(size: int) -> None:
    """Writing a size and reading it loses nothing."""
    assert parse_size(format_size(size)) == size


@given(
    st.one_of(
        st.just(Threshold()),
        st.builds(Threshold, records=st.integers(0, 2**53 - 1)),
        st.builds(Threshold, percent=st.decimals("0.000001", "100", places=6).map(float)),
    )
)
def test_shares_come_back(share: Threshold) -> None:
    """Writing a share and reading it loses nothing."""
    assert parse_share(format_share(share)) == share


@pytest.mark.parametrize("parse", [parse_duration, parse_size, parse_share])
@given(value=st.one_of(st.text(), st.floats(), st.integers(), st.booleans(), st.none()))
def test_nothing_but_value_errors(parse: Callable[[object], object], value: object) -> None:
    """Any text gives a value or a ValueError."""
    with contextlib.suppress(ValueError):
        parse(value)


def test_spelled_as_people_do() -> None:
    """Defaults are shown as people write them."""
    assert [format_duration(timedelta(hours=hours)) for hours in (1, 24, 168)] == ["1h", "24h", "7d"]
    assert format_size(64 * 1024**2) == "64MiB"
