"""Laws of :mod:`poller.service.ways_out`: a message that is known has a way out, and it is the right one."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from poller.service.ways_out import clock_apart, way_out


@pytest.mark.parametrize(
    ("message", "word"),
    [
        ("GET /x: the API answered 401: {}", "auth"),
        ("GET /x: the API answered 403", "right"),
        ("GET /x: the API answered 404", "base_url"),
        ("GET /x: the API answered 302", "redirects"),
        ("GET /x: the API answered 503 (3 attempts)", "by itself"),
        ("GET /x: the API answered 429 (3 attempts)", "rate"),
        ("the answer is not a list envelope: expected the key results, found data", '{"results": […], "pageToken"'),
        ("the answer is not a list envelope: Expected `object`, got `array`", "no list of records"),
        ("GET /x: no complete answer within 30 s (3 attempts)", "timeout"),
    ],
)
def test_each_known_failure_has_its_own(message: str, word: str) -> None:
    """The way out names what can be set or asked for."""
    assert word in (way_out(message) or "")


def test_what_is_not_known_has_none() -> None:
    """No advice is better than a wrong one; a number in a name is no status."""
    assert way_out("the listing repeats itself") is None
    assert way_out("record 401 of 500 is odd") is None


@pytest.mark.parametrize(
    ("date", "words"),
    [
        ("Mon, 02 Mar 2026 08:15:30 GMT", None),
        ("Mon, 02 Mar 2026 09:15:00 GMT", "3600 s ahead of"),
        ("Mon, 02 Mar 2026 08:10:00 GMT", "300 s behind"),
        ("yesterday", None),
        (None, None),
    ],
)
def test_a_clock_that_is_far_apart_is_told(date: str | None, words: str | None) -> None:
    """By the whole seconds of an answer's Date; what cannot be read says nothing."""
    found = clock_apart(date, now=datetime(2026, 3, 2, 8, 15, tzinfo=UTC))
    assert (found is None) if words is None else (words in (found or ""))
