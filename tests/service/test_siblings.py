"""Laws of :mod:`poller.service.siblings`."""

from __future__ import annotations

from datetime import timedelta
from fractions import Fraction

import msgspec
import pytest

from poller.service.siblings import Siblings
from poller.source.feed import Feed, Mode
from poller.source.paging import Query
from poller.source.resources import resource_of
from poller.source.result import RoundResult


def feed(name: str, *, discover: bool = False) -> Feed:
    return Feed(f"s/{name}", resource_of(name, path="/x"), Query(), "e", "t", discover=discover)


ONE, OTHER, FOLLOWER = feed("one"), feed("other"), feed("follower", discover=True)
NOTHING = RoundResult(feed=FOLLOWER.id, mode=Mode.BASELINE, ok=True)


@pytest.fixture
def parts() -> list[Fraction]:
    return []


@pytest.fixture
def siblings(parts: list[Fraction]) -> Siblings:
    return Siblings(4, parts.append)


def test_a_follower_begins_when_those_that_are_here_were_polled(siblings: Siblings) -> None:
    """Law: in whichever order they came; the others begin at once."""
    for one in (FOLLOWER, ONE, OTHER):
        siblings.came(one)
    assert [siblings.begins_at_once(one) for one in (FOLLOWER, ONE, OTHER)] == [False, True, True]
    assert siblings.polled(ONE) == ()
    assert siblings.polled(OTHER) == (FOLLOWER.id,)
    assert siblings.polled(OTHER) == ()
    assert siblings.begins_at_once(FOLLOWER)


def test_nobody_waits_for_what_is_polled_elsewhere(siblings: Siblings) -> None:
    """Law: neither for a sibling that never came nor for one that went before it was polled."""
    siblings.came(FOLLOWER)
    assert siblings.begins_at_once(FOLLOWER)
    siblings.came(ONE)
    assert not siblings.begins_at_once(FOLLOWER)
    assert siblings.went(ONE) == (FOLLOWER.id,)
    assert siblings.begins_at_once(FOLLOWER)


def test_the_part_of_the_source_that_is_used_here(siblings: Siblings, parts: list[Fraction]) -> None:
    """Law: as many of all as are polled here; the last one leaves it as it is, for nothing is asked any more."""
    for one in (ONE, OTHER):
        siblings.came(one)
    siblings.went(ONE)
    siblings.went(OTHER)
    assert parts == [Fraction(1, 4), Fraction(1, 2), Fraction(1, 4)]


def test_a_round_that_found_no_qualification_is_repeated_soon(siblings: Siblings) -> None:
    """Law: with growing waits, for others may be naming the first ones; not where something was found, or for ever."""
    siblings.came(FOLLOWER)
    waits = [siblings.again(FOLLOWER, NOTHING) for _ in range(14)]
    assert waits[:3] == [timedelta(seconds=1), timedelta(seconds=2), timedelta(seconds=4)]
    assert waits[-1] is None
    for changes in ({"pages": 1}, {"ok": False}, {"mode": Mode.FULL}):
        siblings.came(FOLLOWER)
        assert siblings.again(FOLLOWER, msgspec.structs.replace(NOTHING, **changes)) is None
    assert siblings.again(ONE, NOTHING) is None
