"""Laws of :mod:`poller.delivery.withholding`."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.delivery.attempts import CREDENTIAL_WAIT
from poller.delivery.withholding import TELL_AGAIN, Withholding

WAIT = CREDENTIAL_WAIT.total_seconds()


def test_while_nothing_is_missing_nothing_is_held_up() -> None:
    """Law: everything may begin and be sent, and nothing is to be told of an end."""
    withholding = Withholding()
    for now in range(3):
        assert withholding.admits(now)
        withholding.begin(now)
        assert withholding.turn()
        assert withholding.passed(now, asked=False) is None
    assert (withholding.since, withholding.next_try) == (None, None)


def test_one_attempt_at_a_time_finds_out() -> None:
    """Law: none begins before its time; then one does, and nobody else's turn comes, however many had begun before."""
    withholding = Withholding()
    assert withholding.failed(100)
    assert [withholding.turn() for _ in range(8)] == [False] * 8  # those that had begun
    assert not withholding.admits(100 + WAIT - 0.1)
    assert withholding.admits(100 + WAIT)
    withholding.begin(100 + WAIT)
    assert not withholding.admits(100 + WAIT)
    assert [withholding.turn() for _ in range(3)] == [True, False, False]
    assert not withholding.failed(101 + WAIT)
    assert withholding.next_try == 101 + 2 * WAIT


def test_what_came_to_nothing_holds_up_nobody_for_good() -> None:
    """Law: an attempt that was to find out and never got as far is followed by another one."""
    withholding = Withholding()
    withholding.failed(0)
    for number in range(1, 4):
        assert withholding.admits(number * WAIT)
        withholding.begin(number * WAIT)  # and it ends without a turn


@pytest.mark.parametrize("asked", [True, False])
def test_over_when_one_that_was_to_find_out_got_through(asked: bool) -> None:
    """Law: what was on its way before says nothing of what is there now."""
    withholding = Withholding()
    withholding.failed(10)
    assert withholding.passed(12.5, asked=asked) == (2.5 if asked else None)
    assert withholding.admits(12.5) is asked
    assert withholding.passed(13, asked=True) == (None if asked else 3)
    assert withholding.failed(14)  # and it begins anew, which is told


@given(st.lists(st.floats(0.1, 30), max_size=60))
def test_told_now_and_then(apart: list[float]) -> None:
    """Law: when it begins, and then not before a minute is over, however often it fails and for how long."""
    withholding, now, told = Withholding(), 0.0, []
    for seconds in apart:
        now += seconds
        if withholding.failed(now):
            told.append(now)
    assert told[:1] == [sum(apart[:1])] * len(told[:1])
    assert all(later - earlier >= TELL_AGAIN for earlier, later in pairwise(told))
    assert not apart or now - told[-1] < TELL_AGAIN
