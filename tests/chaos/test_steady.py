"""What a soak sees, and what it makes of it."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.chaos.steady import Steady, drifts, slope


def test_changes_leave_sizes_as_they_are() -> None:
    """Only records that there are, each with another text of the same length."""
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
    """Growth at first is none; a megabyte a minute afterwards is sixty an hour."""
    at = [60.0 * minute for minute in range(40)]
    assert abs(slope(at, [min(minute * 5.0, 50.0) for minute in range(40)])) < 1e-9
    assert abs(slope(at, [float(minute) for minute in range(40)]) - 60) < 1e-9
    assert slope([1.0], [1.0]) == 0


def test_connections_that_only_become_more_drift() -> None:
    """To and fro is none."""
    assert drifts([3, 4, 3, 5, 6, 5])
    assert not drifts([3, 4, 3, 4, 3, 5])
    assert not drifts([3])
