"""Laws of :mod:`poller.control.problems`: each problem is a sentence with its remedy, and what is none is not shown."""

from __future__ import annotations

import msgspec
import pytest

from poller.control.problems import confirmation_text, feed_problems, progress_text, way_out
from poller.source.feed import Progress
from tests.control.statuses import NAMES, feed


def test_a_problem_is_shown_with_its_remedy() -> None:
    """A pause is shown with who and why, a failure with its remedy."""
    paused = feed(state="paused", paused_by="anna", paused_reason="moving", paused_age_seconds=7200.0)
    assert list(feed_problems(paused)) == [f"paused by anna for 2 h: moving; poller resume {NAMES[0]}"]
    denied = feed(state="failing", error="GET /x: the API answered 401")
    assert list(feed_problems(denied)) == [
        "GET /x: the API answered 401 (check that the credential in auth is right and has not expired)"
    ]
    assert list(feed_problems(feed(state="failing", error="odd"))) == ["odd"]


def test_a_long_round_and_a_confirmation_are_shown() -> None:
    """A long round and a confirmation are stated in words below the table."""
    one = feed(progress=Progress("baseline", 40, 4000, 75.0), confirming=True)
    assert list(feed_problems(one)) == [progress_text(one), confirmation_text(one)]


@pytest.mark.parametrize("state", ["held", "paused"])
def test_held_removals_are_shown_until_released(state: str) -> None:
    """Held removals are shown with number, age and remedy, once, even after a good delta or with a pause."""
    reason = f"12 of 60 records are missing: let it through with: poller release {NAMES[0]}"
    held = feed(state=state, held_reason=reason, held_age_seconds=7200.0)
    assert f"held for 2 h: {reason}" in list(feed_problems(held))
    at_once = msgspec.structs.replace(held, state="held", error=reason)
    assert list(feed_problems(at_once)) == [f"held for 2 h: {reason}"]
    later = msgspec.structs.replace(at_once, error="odd")
    assert list(feed_problems(later)) == [f"held for 2 h: {reason}", "odd"]
    of_before = msgspec.structs.replace(at_once, held_age_seconds=None)
    assert list(feed_problems(of_before)) == [f"held: {reason}"]


@pytest.mark.parametrize(("number", "what"), [(1, "a record whose"), (3, "3 records whose")])
def test_records_without_an_id_are_shown_with_the_consequence(number: int, what: str) -> None:
    """Records without an id are shown with their number, the consequence and where to look."""
    [told] = feed_problems(feed(unidentified=number))
    assert f"held {what} id cannot be read, so no record was removed" in told
    assert f"poller dead-letters list {NAMES[0]}" in told


def test_versions_that_are_held_back_are_shown() -> None:
    """Versions that are held back are a problem; the number of all older versions is a detail of the feed."""
    [told] = feed_problems(feed(held_versions=3, backwards=81))
    assert told.startswith("3 versions older than the known ones are held back")
    assert list(feed_problems(feed(backwards=81))) == []


@pytest.mark.parametrize(
    ("message", "word"),
    [
        ("GET /x: the API answered 401: {}", "auth"),
        ("GET /x: the API answered 403", "permission"),
        ("GET /x: the API answered 404", "base_url"),
        ("GET /x: the API answered 302", "redirects"),
        ("GET /x: the API answered 503 (3 attempts)", "itself fails"),
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
