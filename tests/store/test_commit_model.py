"""The commit script against a plain model, step by step, on a real server; broken scripts have to fail.

``--hypothesis-profile=long`` runs two thousand random sequences of sixty steps.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from poller.store.scripts import COMMIT
from tests.store.commit_machine import CommitMachine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.stores import Stores

LONG = settings.get_current_profile_name() == "long"
USUAL = settings(stateful_step_count=30, derandomize=True, database=None)
BREAKING = settings(USUAL, max_examples=400, phases=[Phase.generate], print_blob=False)


@pytest.fixture
def url(stores: Stores) -> str:
    return stores.emptied("valkey")


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as one:
        yield one


def playing(url: str, runner: asyncio.Runner, broken: tuple[str, str] = ("", "")) -> type[CommitMachine]:
    class Playing(CommitMachine):
        pass

    Playing.url, Playing.runner, Playing.broken = url, runner, broken
    return Playing


def test_the_store_is_always_what_the_model_says(url: str, runner: asyncio.Runner) -> None:
    """No gap, no duplicate, one id for each change, the token last, and nothing of a refused commit is written."""
    machine = playing(url, runner)
    run_state_machine_as_test(machine, settings=settings() if LONG else USUAL)


BROKEN = {
    "fence": ("if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 'FENCED' end", ""),
    "lost reply": ("then return 'ALREADY' end", "then return 'STALE' end"),
    "snapshots": ("redis.call('HSET', KEYS[3], unpack(ARGV, first[10], last[10]))", ""),
    "half": ("if lost(counted(KEYS[3], KEYS[8], KEYS[7]), have[4], have[2]) then return 'STALE' end", ""),
    "sequence": ("if have[2] ~= ARGV[3] then return 'STALE' end", ""),
    "digest": ("and have[3] == ARGV[5] ", ""),
}


@pytest.mark.parametrize("check", list(BROKEN) if LONG else list(BROKEN)[:3])
def test_a_broken_script_is_caught(url: str, runner: asyncio.Runner, check: str) -> None:
    """The model detects each check that is taken out of the script."""
    machine = playing(url, runner, BROKEN[check])
    assert BROKEN[check][0] in COMMIT
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine, settings=BREAKING)
