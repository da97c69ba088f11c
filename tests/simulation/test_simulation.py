"""The whole program in a simulated world: seeds that must hold, and the same seed twice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.simulation.__main__ import Found, corpus
from tests.simulation.mutations import CONTROLS, MUTATIONS, control, mutated, play_control
from tests.simulation.plan import brief, calm, drawn, lasting, resting
from tests.simulation.world import play

_ROOT = Path(__file__).parent.parent.parent
_FEW = range(1, 21)
_MANY = range(21, 321)
_WHOLE = range(1, 21)


@pytest.mark.parametrize(("daemons", "feeds", "subscriptions"), [(1, 1, 1), (3, 4, 2)])
def test_without_faults_all_is_published_and_delivered(daemons: int, feeds: int, subscriptions: int) -> None:
    """Law: undisturbed, every change is published once and delivered once, status is true, and all end in order."""
    result = play(calm(1, daemons=daemons, feeds=feeds, subscriptions=subscriptions, seconds=8))
    assert not result.problems
    assert result.events > 0
    assert result.requests == result.events * subscriptions


def test_batch_is_sent_though_the_store_answers_later_than_it_waits() -> None:
    """Law: a batch whose time passes while the store is asked is sent then, and not with a later event."""
    plan = calm(1, seconds=5.0)
    batches = msgspec.structs.replace(plan.subscriptions[0], mode="batch", linger=0.02, batch=100, timeout=3.0)
    result = play(msgspec.structs.replace(plan, ttl=5.0, latency=0.3, subscriptions=(batches,)))
    assert not result.problems
    assert result.events > 0


def test_rest_costs_little() -> None:
    """Law: at rest, few steps of the loop stand for a second, so that hours of operation can be simulated.

    Steps are counted, and not time: ``--speed`` measures that, on a quiet machine.
    """
    result = play(resting(60.0))
    assert not result.problems
    assert result.handles / result.seconds < 500


@pytest.mark.parametrize("one", corpus(), ids=lambda one: one.found[:40].replace(" ", "-"))
def test_plan_that_failed_once(one: Found) -> None:
    """Law: what a plan has found once stays mended."""
    result = play(one.plan)
    assert not result.problems, "\n".join((one.found, *result.problems))


@pytest.mark.parametrize("seed", _FEW)
def test_seed(seed: int) -> None:
    """Law: whatever the plan of a seed does to a small world, all that is promised holds."""
    result = play(brief(seed))
    again = f"python -m tests.simulation --seed {seed} --brief"
    assert not result.problems, "\n".join((again, *result.problems))


@pytest.mark.thorough
@pytest.mark.parametrize("seed", _MANY)
def test_further_seed(seed: int) -> None:
    """Law: the same for three hundred more."""
    test_seed(seed)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", _WHOLE)
def test_whole_seed(seed: int) -> None:
    """Law: the same for more seeds and a minute or two each."""
    result = play(drawn(seed))
    assert not result.problems, "\n".join((f"python -m tests.simulation --seed {seed}", *result.problems))


@pytest.mark.thorough
@pytest.mark.parametrize("seed", _WHOLE)
def test_world_that_goes_on_at_rest(seed: int) -> None:
    """Law: the same for a small world that goes on at rest for two minutes more, with few faults."""
    result = play(lasting(seed, 144.0))
    assert result.seconds >= 100.0
    assert not result.problems, "\n".join((f"lasting({seed}, 144.0)", *result.problems))


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [3])
def test_same_seed_same_trace(seed: int) -> None:
    """Law: a run follows from its seed alone: in a process that hashes strings otherwise the trace is the same."""
    hashes = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--seed", str(seed), "--brief", "--no-shrink"],
        check=False,
        cwd=_ROOT,
        env=os.environ | {"PYTHONHASHSEED": hashes},
        capture_output=True,
        text=True,
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith(f"seed {seed}:"))
    assert f"trace {play(brief(seed)).digest}" in line


def test_mutations_apply(tmp_path: Path) -> None:
    """Law: each mistake of the table can still be put into the program; the program has what it takes away."""
    for mutation in MUTATIONS:
        mutated(mutation, tmp_path / mutation.name, whole=False)
        for name in mutation.changes:
            assert (tmp_path / mutation.name / "poller" / name).read_text() != (_ROOT / "poller" / name).read_text()


@pytest.mark.thorough
@pytest.mark.parametrize("name", CONTROLS)
def test_naive_program_is_right_when_nothing_goes_wrong(name: str) -> None:
    """Law: undisturbed, a naive program publishes and delivers rightly, so what is found of it comes of the faults."""
    result = play_control(name, 1, calmly=True)
    assert result.events > 0 or result.requests > 0
    assert not [problem for problem in result.problems if problem.startswith(("stream: ", "sink "))]


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # who is killed closes no connection
@pytest.mark.parametrize("name", CONTROLS)
def test_naive_program_is_caught(name: str) -> None:
    """Law: a simulation that cannot fail proves nothing: naive programs are found wrong within a few seeds."""
    caught = control(name, 20)
    assert caught.problem is not None
