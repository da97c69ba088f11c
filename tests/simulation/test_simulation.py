"""The whole program in a simulated world: seeds that must hold, and the same seed twice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.__main__ import corpus
from tests.simulation.plan import calm, drawn
from tests.simulation.world import play

_ROOT = Path(__file__).parent.parent.parent
_FEW = range(1, 21)
_MANY = range(21, 321)


@pytest.mark.parametrize(("daemons", "feeds", "subscriptions"), [(1, 1, 1), (2, 1, 1), (3, 4, 2)])
def test_without_faults_all_is_published_and_delivered(daemons: int, feeds: int, subscriptions: int) -> None:
    """Law: undisturbed, every change is published once and delivered once, status is true, and all end in order."""
    result = play(calm(1, daemons=daemons, feeds=feeds, subscriptions=subscriptions, seconds=15))
    assert not result.problems
    assert result.events > 0
    assert result.requests == result.events * subscriptions


@pytest.mark.parametrize("seed", [*corpus(), *(seed for seed in _FEW if seed not in corpus())])
def test_seed(seed: int) -> None:
    """Law: whatever the plan of a seed does to the world, all that is promised holds."""
    result = play(drawn(seed))
    assert not result.problems, "\n".join((f"python -m tests.simulation --seed {seed}", *result.problems))


@pytest.mark.thorough
@pytest.mark.parametrize("seed", _MANY)
def test_further_seed(seed: int) -> None:
    """Law: the same for more seeds."""
    result = play(drawn(seed))
    assert not result.problems, "\n".join((f"python -m tests.simulation --seed {seed}", *result.problems))


@pytest.mark.parametrize("seed", [3])
def test_same_seed_same_trace(seed: int) -> None:
    """Law: a run follows from its seed alone: in two processes that hash strings otherwise the traces are the same."""
    lines = []
    for hashes in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.simulation", "--seed", str(seed), "--no-shrink"],
            check=False,
            cwd=_ROOT,
            env=os.environ | {"PYTHONHASHSEED": hashes},
            capture_output=True,
            text=True,
        )
        lines.append(next(line for line in done.stdout.splitlines() if line.startswith(f"seed {seed}:")))
    assert lines[0] == lines[1]
    assert "trace " in lines[0]
