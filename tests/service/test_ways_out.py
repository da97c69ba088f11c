"""Laws of :mod:`poller.service.ways_out`: a message that is known has a way out, and it is the right one."""

from __future__ import annotations

import pytest

from poller.service.ways_out import way_out


@pytest.mark.parametrize(
    ("message", "word"),
    [
        ("GET /x: the API answered 401: {}", "auth"),
        ("GET /x: the API answered 403", "right"),
        ("GET /x: the API answered 404", "base_url"),
        ("GET /x: the API answered 302", "redirects"),
        ("GET /x: the API answered 503 (3 attempts)", "by itself"),
        ("GET /x: the API answered 429 (3 attempts)", "rate"),
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
