"""Laws of :mod:`poller.delivery.standing`: two processes that share the feeds judge as one would."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from poller.delivery.health import Health
from poller.delivery.standing import Standing

NOON = datetime(2025, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def noted(standing: Standing, kept: dict[str, Health]) -> list[str]:
    """Write down what is to be, as the subscriber does; of which feeds that was."""
    written = list(standing.unnoted)
    for feed, health in written:
        kept[feed] = health
        standing.noted(feed, health)
    return [feed for feed, _ in written]


@given(st.lists(st.tuples(st.sampled_from("sf"), st.sampled_from("abc")), max_size=40))
def test_one_process_knows_the_first_failure_after_the_last_success(steps: list[tuple[str, str]]) -> None:
    """Law: a success at one feed ends the failing of all; what is noted of each says the same."""
    standing, kept, at = Standing(5 * HOUR), dict[str, Health](), NOON
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
    """Law: a success that another process has noted counts, and failing goes on from there."""
    here, there, kept = Standing(10 * HOUR), Standing(10 * HOUR), dict[str, Health]()
    for hour in range(10):
        here.failed("a", NOON + hour * HOUR)
        there.succeeded("b", NOON + hour * HOUR)
        noted(here, kept)
        noted(there, kept)
    assert here.failing_since == NOON
    here.heard(kept)
    assert here.failing_since == NOON + 9 * HOUR
    assert there.failing_since is None


def test_successes_are_noted_now_and_then() -> None:
    """Law: the first, and one in each tenth of the time after which failures disable, a minute at most."""
    for limit, apart in ((timedelta(days=5), timedelta(minutes=1)), (timedelta(seconds=10), timedelta(seconds=1))):
        standing, kept = Standing(limit), dict[str, Health]()
        told = []
        for part in range(41):
            standing.succeeded("a", NOON + part * apart / 10)
            told.append(bool(noted(standing, kept)))
        assert [number for number, one in enumerate(told) if one] == [0, 10, 20, 30, 40]


def test_what_is_delivered_elsewhere_is_not_written() -> None:
    """Law: once it is left, nothing of a feed is to be noted; taken again, it goes on from what was noted last."""
    standing, kept = Standing(HOUR), dict[str, Health]()
    standing.failed("a", NOON)
    standing.failed("a", NOON)
    noted(standing, kept)
    standing.failed("a", NOON)
    assert standing.counts("a") == Health(NOON, failed=3)
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
    """Law: told at once and once, with the words; the sink's failing is counted anew when it is reached again."""
    standing, kept = Standing(5 * HOUR), dict[str, Health]()
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
    assert kept["b"] == Health(NOON + 9 * HOUR, failed=2, error="status 500")
    standing.unsent("b", NOON + 10 * HOUR, "no such file")
    standing.succeeded("a", NOON + 11 * HOUR)
    noted(standing, kept)
    assert not standing.error
    assert not any(one.failing_since or one.unsent for one in kept.values())


def test_who_takes_a_feed_over_knows_that_it_was_not_sent() -> None:
    """Law: what another process could not send is not counted against the sink either."""
    standing = Standing(5 * HOUR)
    standing.took("a", Health(NOON, error="no such file", unsent=True))
    assert (standing.failing_since, standing.error) == (NOON, "no such file")
    standing.failed("a", NOON + 9 * HOUR, "status 500")
    assert standing.failing_since == NOON + 9 * HOUR
