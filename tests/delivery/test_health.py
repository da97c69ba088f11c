"""Laws of :mod:`poller.delivery.health`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from poller.delivery.health import Health, Turn, after_failure, after_success, resumed

NOON = datetime(2025, 3, 1, 12, tzinfo=UTC)
LIMIT = timedelta(hours=5)
STEPS = st.lists(st.tuples(st.sampled_from("sfr"), st.integers(-1, 3)), max_size=60)


def failure(health: Health, hours: float) -> tuple[Health, Turn | None]:
    return after_failure(health, NOON + timedelta(hours=hours), disable_after=LIMIT)


@given(STEPS)
def test_disabled_by_failures_alone_and_by_nothing_else(steps: list[tuple[str, int]]) -> None:
    """Against a plain reading of the history: failures since the last success or resumption, in any order of time."""
    health, at = Health(), NOON
    failures: list[datetime] = []
    told: list[Turn | None] = []
    for what, hours in steps:
        at += timedelta(hours=hours)
        before, turn = health, None
        if what == "s":
            health, turn = after_success(health, at)
            failures = []
        elif what == "f":
            health, turn = after_failure(health, at, disable_after=LIMIT)
            failures.append(at)
        else:
            health = resumed(health)
            failures = []
        assert health.disabled == any(late - failures[0] >= LIMIT for late in failures)
        assert health.failing_since == (failures[0] if failures else None)
        assert (turn is Turn.DISABLED) == (health.disabled and not before.disabled)
        told.append(turn)
    assert health.delivered == sum(what == "s" for what, _ in steps)
    assert health.failed == sum(what == "f" for what, _ in steps)
    turns = [turn for turn in told if turn]
    assert turns[:1] != [Turn.RECOVERED]
    assert (Turn.RECOVERED, Turn.RECOVERED) not in set(pairwise(turns))


def test_a_failure_long_after_the_first_disables() -> None:
    """Exactly at the limit and not before; told once, however many failures are still on their way."""
    health, turn = failure(Health(), 0)
    health, turn = failure(health, 4.99)
    assert (health.disabled, turn) == (False, None)
    health, turn = failure(health, 5)
    assert (health.disabled, turn) == (True, Turn.DISABLED)
    for hours in (4, 6):  # in any order of time
        health, turn = failure(health, hours)
        assert (health.disabled, turn) == (True, None)
    assert health.failed_in_a_row == 5


def test_one_success_starts_the_count_anew() -> None:
    """A sink that takes one event now and then is not disabled."""
    health, _ = failure(Health(), 0)
    health, turn = after_success(health, NOON + timedelta(hours=4))
    assert (turn, health.failed_in_a_row, health.delivered_at) == (None, 0, NOON + timedelta(hours=4))
    for hours in (6, 10.9):
        health, turn = failure(health, hours)
        assert turn is None


def test_recovered_by_the_first_success_after_it_was_resumed() -> None:
    """It is tried for another whole span; the first success is told once, and a second disabling again."""
    health, _ = failure(Health(), 0)
    health, _ = failure(health, 5)
    health = resumed(health)
    assert (health.disabled, health.failing_since) == (False, None)
    health, turn = failure(health, 100)
    assert turn is None
    again, turn = failure(health, 105)
    assert turn is Turn.DISABLED
    well, turn = after_success(again, NOON)
    assert (turn, well.disabled) == (Turn.RECOVERED, False)
    assert after_success(well, NOON)[1] is None
    assert after_success(health, NOON)[1] is Turn.RECOVERED


def test_a_success_that_ends_late_does_not_move_the_clock_back() -> None:
    """Attempts may end in any order; the last success is the latest one."""
    health, _ = after_success(Health(), NOON)
    assert after_success(health, NOON - LIMIT)[0].delivered_at == NOON
    late, turn = failure(failure(Health(), 0)[0], -24)
    assert (late.disabled, turn) == (False, None)
