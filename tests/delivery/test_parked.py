"""Laws of :mod:`poller.delivery.parked`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from poller.delivery.attempts import Patience, Tries
from poller.delivery.kept import Delivery
from poller.delivery.lanes import Waiting
from poller.delivery.parked import Parked
from poller.delivery.subscription import Event

NOW = datetime(2026, 3, 2, tzinfo=UTC)
PATIENCE = Patience([timedelta(seconds=1), timedelta(seconds=10)], 0.5)


def due_in(seconds: float) -> int:
    return int((NOW + timedelta(seconds=seconds)).timestamp() * 1000)


def joined(**deliveries: Delivery) -> tuple[Parked, list[Waiting[Event]]]:
    """Those of the entries ``1-0``, ``2-0`` … at 100 s of our clock."""
    parked = Parked(PATIENCE)
    return parked, list(parked.join({f"{name[1:]}-0": one for name, one in deliveries.items()}, now=NOW, clock=100.0))


@pytest.mark.parametrize(("seconds", "expected"), [(4, 104.0), (-30, 100.0), (15, 115.0), (3600, 115.0)])
def test_nothing_waits_longer_than_its_schedule(seconds: float, expected: float) -> None:
    """Law: a wall clock that was set back since, or forward, moves a wait within its own length at most."""
    parked, _ = joined(_1=Delivery("a", due=due_in(seconds), tries=Tries(3, 3)))
    assert parked.due("1-0") == pytest.approx(expected)


@pytest.mark.parametrize(
    ("tries", "longest"),
    [
        (Tries(2, 2), 1.5),  # the first wait, with all of its jitter
        (Tries(9, 9), 15.0),  # the schedule was shortened since: the last wait of what there is
        (Tries(2, 1, timedelta(minutes=1)), 60.5),  # the sink asked for a pause, and the first jitter spreads it
    ],
)
def test_an_hour_of_the_clock_costs_no_more_than_the_wait(tries: Tries, longest: float) -> None:
    """Law: what was parked while the clock was wrong goes on after the wait that it was parked for."""
    parked, _ = joined(_1=Delivery("a", due=due_in(3600), tries=tries))
    assert parked.due("1-0") == pytest.approx(100.0 + longest)


def test_what_is_due_with_its_record_has_no_wait_of_its_own() -> None:
    """It goes on as soon as it is the foremost, so no moment is noted for it, now or later."""
    parked, _ = joined(_1=Delivery("a", due=due_in(4)), _2=Delivery("a"))
    for entry in parked:
        parked.wait(entry, 200.0)
    assert (parked.due("1-0"), parked.due("2-0"), parked.due(None)) == (200.0, None, None)


def test_each_stands_in_its_lane_as_it_was_tried() -> None:
    """Law: in the order in which they were given; whoever has failed by itself is sent by itself."""
    _, waiting = joined(
        _1=Delivery("a", size=7), _2=Delivery("b", tries=Tries(2, 2)), _3=Delivery("b", tries=Tries(2, 1))
    )
    assert [(one.id, one.key, one.size, one.alone, one.fresh) for one in waiting] == [
        ("1-0", "a", 7, False, False),
        ("2-0", "b", 0, True, False),
        ("3-0", "b", 0, False, False),
    ]


def test_what_is_settled_is_forgotten() -> None:
    """Its attempts, its event and its moment; should it come again, it was never tried."""
    parked, (waiting,) = joined(_1=Delivery("a", due=due_in(4), tries=Tries(2, 2)))
    assert parked.of(waiting).tries == Tries(2, 2)
    parked.drop("1-0")
    assert (list(parked), parked.due("1-0"), parked.of(waiting)) == ([], None, Delivery("a"))
