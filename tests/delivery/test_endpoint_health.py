"""Laws of :mod:`poller.delivery.endpoint_health`: since when a sink fails, over feeds and restarts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.delivery.endpoint_health import (
    EndpointHealth,
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
    """A subscription is failing since the first failure after its last success or resumption, as in a plain model."""
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
    """A subscription is failing since some time between the last success at any feed and the first failure after it.

    Each feed knows only its own attempts.
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
    """A success of another process moves the start of failing to its time, unless the failing began later."""
    failing = after_failure(Health(), NOON)
    later = NOON + timedelta(hours=1)
    assert after_success_elsewhere(failing, later).failing_since == later
    assert after_success_elsewhere(failing, NOON - timedelta(hours=1)) == failing
    assert after_success_elsewhere(failing, None) == failing
    assert after_success_elsewhere(Health(), later) == Health()


def test_a_success_that_ends_late_does_not_move_the_clock_back() -> None:
    """A success with an earlier time than the last one does not move the last success back."""
    health = after_success(Health(), NOON)
    assert after_success(health, NOON - timedelta(seconds=30)).delivered_at == NOON


def test_a_success_that_a_wrong_clock_has_noted_is_not_kept() -> None:
    """A stored success that lies in the future is replaced by the next success."""
    health = after_success(Health(), NOON + timedelta(days=30))
    assert after_success(health, NOON).delivered_at == NOON


def test_what_cannot_be_read_counts_as_new() -> None:
    """Stored health that cannot be decoded counts as new health."""
    health = Health(NOON, 3, 4, NOON, unwell=True)
    assert health_of(msgspec.json.encode(health)) == health
    assert health_of(None) == health_of(b"[]") == Health()


def test_what_keeps_a_subscription_from_beginning_is_failing() -> None:
    """A subscription that cannot start is failing until it starts here or another process delivers."""
    broken = after_no_start(
        after_no_start(Health(unwell=True), NOON, "no such file"), NOON + timedelta(hours=1), "no such file"
    )
    assert (broken.failing_since, broken.error, broken.unwell) == (NOON, "no such file", True)
    found = of_subscription(broken, [Health(delivered=3, delivered_at=NOON - timedelta(hours=1))])
    assert (found.failing_since, found.error, found.delivered) == (NOON, "no such file", 3)
    assert of_subscription(broken, [Health(delivered=3, delivered_at=NOON + timedelta(hours=1))]).failing_since is None
    assert after_start(broken) == Health(unwell=True)
    assert of_subscription(Health(unwell=True), [Health(failing_since=NOON, error="503")]).error == "503"


# Laws of :class:`poller.delivery.endpoint_health.EndpointHealth`: processes that share the feeds judge as one would.

HOUR = timedelta(hours=1)


def noted(standing: EndpointHealth, kept: dict[str, Health]) -> list[str]:
    """Store the health that is to be stored, as the endpoint does; return the feeds."""
    written = list(standing.unnoted)
    for feed, health in written:
        kept[feed] = health
        standing.noted(feed, health)
    return [feed for feed, _ in written]


@given(st.lists(st.tuples(st.sampled_from("sf"), st.sampled_from("abc")), max_size=40))
def test_one_process_knows_the_first_failure_after_the_last_success(steps: list[tuple[str, str]]) -> None:
    """A success at one feed ends the failing of all feeds, also in the stored health."""
    standing, kept, at = EndpointHealth(5 * HOUR), dict[str, Health](), NOON
    first: datetime | None = None
    for what, feed in steps:
        at += HOUR
        if what == "s":
            standing.succeeded(feed, at)
            first = None
        else:
            standing.failed(feed, at)
            first = first or at
        noted(standing, kept)
        assert standing.failing_since == first
        assert {one.failing_since for one in kept.values()} <= {None, first} or first is not None
        assert all(one.failing_since is None for one in kept.values()) is (first is None)


def test_where_another_delivers_nobody_takes_the_sink_for_dead() -> None:
    """A success that another process has stored moves the start of failing to its time."""
    here, there, kept = EndpointHealth(10 * HOUR), EndpointHealth(10 * HOUR), dict[str, Health]()
    for hour in range(10):
        here.failed("a", NOON + hour * HOUR)
        there.succeeded("b", NOON + hour * HOUR)
        noted(here, kept)
        noted(there, kept)
    assert here.failing_since == NOON
    here.heard(kept)
    assert here.failing_since == NOON + 9 * HOUR
    assert there.failing_since is None


def test_a_success_that_a_wrong_clock_has_noted_keeps_nothing_alive() -> None:
    """A stored success that lies in the future does not hide failures, and the next success is stored."""
    here, kept = EndpointHealth(10 * HOUR), {"b": Health(delivered=1, delivered_at=NOON + timedelta(days=30))}
    for hour in range(11):
        here.failed("a", NOON + hour * HOUR)
        here.heard(kept)
    assert here.failing_for == 10 * HOUR
    there = EndpointHealth(10 * HOUR)
    there.took("b", kept["b"])
    there.succeeded("b", NOON)
    assert noted(there, kept) == ["b"]
    assert kept["b"].delivered_at == NOON


@given(st.lists(st.tuples(st.sampled_from("sfr"), st.floats(0, 40), st.floats(-100, 100)), max_size=40))
def test_what_counts_is_the_time_between_failed_attempts(steps: list[tuple[str, float, float]]) -> None:
    """The time of failing is the monotonic time between failed attempts, each gap at most a day.

    Over a restart at most a fifth of the limit counts, whatever the store's clock shows. A success ends the failing.
    """
    limit, longest = timedelta(days=5), timedelta(hours=24)
    standing, kept, at, clock = EndpointHealth(limit, longest=longest), dict[str, Health](), NOON, 0.0
    counted, last = 0.0, None
    for what, hours, jump in steps:
        clock += hours * 3600
        at += timedelta(hours=hours + jump)
        if what == "s":
            standing.succeeded("a", at)
            counted, last = 0.0, None
        elif what == "f":
            before = counted
            standing.failed("a", at, clock=clock)
            assert standing.failing_for is not None
            counted = standing.failing_for.total_seconds()
            if last is not None:
                assert counted - before == pytest.approx(min(clock - last, longest.total_seconds()), abs=1e-5)
            assert 0 <= counted - before <= limit.total_seconds() / 5 + 0.001
            last = clock
        else:
            if (health := standing.counts("a")) is not None:
                kept["a"] = health
            noted(standing, kept)
            standing = EndpointHealth(limit, longest=longest)
            standing.took("a", kept.get("a", Health()))
            last = None
        assert (standing.failing_for or timedelta()).total_seconds() == pytest.approx(counted, abs=1e-5)


def test_a_running_delivery_forgets_its_failures_when_it_is_resumed() -> None:
    """A resumption restarts the count of failing for a feed that goes on being delivered here, and it is stored so."""
    standing = EndpointHealth(timedelta(days=5))
    standing.took("a", Health())
    for hour in range(3):
        standing.failed("a", NOON + timedelta(hours=hour), "no")
    assert (standing.failing_for, standing.error) == (timedelta(hours=2), "no")
    standing.resume()
    assert (standing.failing_for, standing.error) == (None, None)
    stored = standing.counts("a")
    assert stored is not None
    assert (stored.failing_since, stored.failing_seconds, stored.failed) == (None, 0.0, 3)
    standing.failed("a", NOON + timedelta(hours=3), "no")
    assert standing.failing_for == timedelta(0)


def test_failing_that_an_older_version_has_noted_goes_on() -> None:
    """Of failing that an older version stored without its duration at most a fifth of the limit counts."""
    standing = EndpointHealth(5 * HOUR)
    standing.took("a", Health(NOON, failed=7))
    standing.failed("a", NOON + timedelta(days=30), clock=0.0)
    assert standing.failing_for == HOUR
    standing.failed("a", NOON + timedelta(days=30), clock=3600.0)
    assert standing.failing_for == 2 * HOUR
    assert standing.failing_since == NOON


def test_successes_are_noted_now_and_then() -> None:
    """The first success is stored, then one per tenth of the limit, at most one minute apart."""
    for limit, apart in ((timedelta(days=5), timedelta(minutes=1)), (timedelta(seconds=10), timedelta(seconds=1))):
        standing, kept = EndpointHealth(limit), dict[str, Health]()
        told = []
        for part in range(41):
            standing.succeeded("a", NOON + part * apart / 10)
            told.append(bool(noted(standing, kept)))
        assert [number for number, one in enumerate(told) if one] == [0, 10, 20, 30, 40]


def test_what_is_delivered_elsewhere_is_not_written() -> None:
    """The health of a feed that was left is not stored; taken again, the feed continues from the stored health."""
    standing, kept = EndpointHealth(HOUR), dict[str, Health]()
    standing.failed("a", NOON)
    standing.failed("a", NOON)
    noted(standing, kept)
    standing.failed("a", NOON)
    assert standing.counts("a") == Health(NOON, failed=3, failed_at=NOON)
    standing.left("a")
    assert standing.counts("a") is None
    standing.succeeded("b", NOON)
    assert noted(standing, kept) == ["b"]
    standing.took("a", Health(NOON, failed=7))
    assert standing.failing_since == NOON
    standing.succeeded("b", NOON + HOUR)
    assert noted(standing, kept) == ["a", "b"]
    assert kept["a"] == Health(failed=7)


def test_what_was_not_even_sent_is_failing_and_says_nothing_of_the_sink() -> None:
    """An attempt that could not be sent is stored once; the sink's own failures are counted from 0 afterwards."""
    standing, kept = EndpointHealth(5 * HOUR), dict[str, Health]()
    standing.failed("a", NOON, "status 500")
    standing.failed("b", NOON, "status 500")
    assert noted(standing, kept) == ["a", "b"]
    assert standing.error == "status 500"
    for hour in (1, 2, 3):
        standing.unsent("b", NOON + hour * HOUR, "no such file")
        assert noted(standing, kept) == (["a", "b"] if hour == 1 else [])
        assert standing.error == "no such file"
        assert {(one.failing_since, one.failed, one.unsent) for one in kept.values()} == {(NOON, 1, True)}
    standing.failed("b", NOON + 9 * HOUR, "status 500")
    assert noted(standing, kept) == ["a", "b"]
    assert standing.failing_since == NOON + 9 * HOUR
    assert kept["a"] == Health(failed=1, error="no such file")
    assert kept["b"] == Health(NOON + 9 * HOUR, failed=2, error="status 500", failed_at=NOON + 9 * HOUR)
    standing.unsent("b", NOON + 10 * HOUR, "no such file")
    standing.succeeded("a", NOON + 11 * HOUR)
    noted(standing, kept)
    assert not standing.error
    assert not any(one.failing_since or one.unsent for one in kept.values())


def test_who_takes_a_feed_over_knows_that_it_was_not_sent() -> None:
    """Attempts that another process could not send are not counted against the sink either."""
    standing = EndpointHealth(5 * HOUR)
    standing.took("a", Health(NOON, error="no such file", unsent=True))
    assert (standing.failing_since, standing.error) == (NOON, "no such file")
    standing.failed("a", NOON + 9 * HOUR, "status 500")
    assert standing.failing_since == NOON + 9 * HOUR


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_a_feed_that_is_taken_over_shortens_no_failing(order: tuple[str, ...]) -> None:
    """The sink has failed for as long as its longest failing feed, in whichever order the feeds are taken over."""
    standing = EndpointHealth(5 * HOUR)
    kept = {
        "a": Health(NOON, failed=7, failed_at=NOON, failing_seconds=7200.0),
        "b": Health(NOON, failed=1, failed_at=NOON, failing_seconds=60.0),
    }
    for feed in order:
        standing.took(feed, kept[feed])
    assert standing.failing_for == 2 * HOUR
