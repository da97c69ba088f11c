"""Laws of the soak's changes and of its findings."""

from __future__ import annotations

import os
from random import Random
from types import SimpleNamespace
from typing import Any

from tests.chaos.steady import EXPLAINED, Steady, Watched, drifts, slope


def test_changes_leave_sizes_as_they_are() -> None:
    """Only present records are changed, each to another text of the same length."""
    log: list[dict[str, Any]] = [
        {"id": "a", "resource": "contractTypes", "record": {"id": "a", "name": "x"}},
        {"id": "b", "resource": "contractTypes", "record": {"id": "b", "name": "x"}},
        {"id": "b", "resource": "contractTypes", "record": None},
    ]
    changed = [record for _, record in Steady(log, Random(1)).changes(5)]
    assert {record["id"] for record in changed} == {"a"}
    assert len({record["name"] for record in changed}) == 5
    assert len({len(record["name"]) for record in changed}) == 1


def test_the_slope_is_of_the_time_after_the_warm_up() -> None:
    """Growth during the warm-up is ignored; a megabyte a minute afterwards is sixty an hour."""
    at = [60.0 * minute for minute in range(40)]
    assert abs(slope(at, [min(minute * 5.0, 50.0) for minute in range(40)])) < 1e-9
    assert abs(slope(at, [float(minute) for minute in range(40)]) - 60) < 1e-9
    assert slope([1.0], [1.0]) == 0


def test_connections_that_only_become_more_drift() -> None:
    """A lasting increase of connections is a drift, and a fluctuation is not."""
    assert drifts([3, 4, 3, 5, 6, 5])
    assert not drifts([3, 4, 3, 4, 3, 5])
    assert not drifts([3])


def test_a_soak_holds_unless_something_is_not_explained() -> None:
    """A warning soon after a restart is explained; any other warning is reported and fails the soak."""
    now = 0.0
    watched = Watched(lambda: now)
    one: Any = SimpleNamespace(pid=os.getpid(), lines=[])
    for _ in range(4):
        now += 60
        watched.restarted()
        one.lines.append({"level": "warning", "event": "redis unavailable"})
        watched.sample(one, clients=20)
    assert (watched.held, "{'redis unavailable': 4}" in str(watched)) == (True, True)
    now += EXPLAINED + 1
    one.lines.append({"level": "warning", "event": "lease lost"})
    watched.sample(one, clients=20)
    assert (watched.held, "lease lost" in str(watched)) == (False, True)
