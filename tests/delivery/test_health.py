"""Laws of :mod:`poller.delivery.health`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from poller.delivery.health import (
    Health,
    after_failure,
    after_no_start,
    after_start,
    after_success,
    after_success_elsewhere,
    health_of,
    of_subscription,
    resumed,
    whole,
)

NOON = datetime(2025, 3, 1, 12, tzinfo=UTC)
STEPS = st.lists(st.tuples(st.sampled_from("sfr"), st.integers(-1, 3)), max_size=60)


@given(STEPS)
def test_failing_since_the_first_failure_after_the_last_success(steps: list[tuple[str, int]]) -> None:
    """Against a plain reading of the history: successes and resumptions end it, in any order of time."""
    health, at = Health(), NOON
    failures: list[datetime] = []
    for what, hours in steps:
        at += timedelta(hours=hours)
        if what == "s":
            health, failures = after_success(health, at), []
        elif what == "f":
            health = after_failure(health, at)
            failures.append(at)
        else:
            health, failures = resumed(health), []
        assert health.failing_since == (failures[0] if failures else None)
    assert health.delivered == sum(what == "s" for what, _ in steps)
    assert health.failed == sum(what == "f" for what, _ in steps)


@given(st.lists(st.tuples(st.sampled_from("sf"), st.integers(0, 3), st.integers(0, 2)), max_size=40))
def test_what_the_feeds_come_to(steps: list[tuple[str, int, int]]) -> None:
    """Law: nothing but failures since no earlier than the last success at any feed, and no later than the first after.

    Though each feed knows of nothing but itself.
    """
    healths, at = [Health()] * 3, NOON
    failures: list[datetime] = []
    success: datetime | None = None
    for what, hours, feed in steps:
        at += timedelta(hours=hours)
        if what == "s":
            healths[feed] = after_success(healths[feed], at)
            failures, success = [], at
        else:
            healths[feed] = after_failure(healths[feed], at)
            failures.append(at)
        found = whole(healths)
        if failures:
            assert (success or failures[0]) <= (found.failing_since or datetime.max.replace(tzinfo=UTC)) <= failures[0]
        assert found.delivered_at == success
    assert whole(healths).delivered + whole(healths).failed == len(steps)


def test_a_success_elsewhere_counts() -> None:
    """Law: failing goes on from there; one from before the failing began changes nothing."""
    failing = after_failure(Health(), NOON)
    later = NOON + timedelta(hours=1)
    assert after_success_elsewhere(failing, later).failing_since == later
    assert after_success_elsewhere(failing, NOON - timedelta(hours=1)) == failing
    assert after_success_elsewhere(failing, None) == failing
    assert after_success_elsewhere(Health(), later) == Health()


def test_a_success_that_ends_late_does_not_move_the_clock_back() -> None:
    """Attempts may end in any order; the last success is the latest one."""
    health = after_success(Health(), NOON)
    assert after_success(health, NOON - timedelta(seconds=30)).delivered_at == NOON


def test_a_success_that_a_wrong_clock_has_noted_is_not_kept() -> None:
    """Law: the next success is the last one, though one was noted that is still to come."""
    health = after_success(Health(), NOON + timedelta(days=30))
    assert after_success(health, NOON).delivered_at == NOON


def test_what_cannot_be_read_counts_as_new() -> None:
    """Law: what another version wrote costs the counts, no more."""
    health = Health(NOON, 3, 4, NOON, unwell=True)
    assert health_of(msgspec.json.encode(health)) == health
    assert health_of(None) == health_of(b"[]") == Health()


def test_what_keeps_a_subscription_from_beginning_is_failing() -> None:
    """Since it was found first; over once it begins, or where another process delivers all the same."""
    broken = after_no_start(
        after_no_start(Health(unwell=True), NOON, "no such file"), NOON + timedelta(hours=1), "no such file"
    )
    assert (broken.failing_since, broken.error, broken.unwell) == (NOON, "no such file", True)
    found = of_subscription(broken, [Health(delivered=3, delivered_at=NOON - timedelta(hours=1))])
    assert (found.failing_since, found.error, found.delivered) == (NOON, "no such file", 3)
    assert of_subscription(broken, [Health(delivered=3, delivered_at=NOON + timedelta(hours=1))]).failing_since is None
    assert after_start(broken) == Health(unwell=True)
    assert of_subscription(Health(unwell=True), [Health(failing_since=NOON, error="503")]).error == "503"
