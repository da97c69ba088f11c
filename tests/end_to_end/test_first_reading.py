"""Ten thousand records are read for the first time, then fifty rounds of changes; the stream replays to the source."""

from __future__ import annotations

import os
from random import Random
from typing import TYPE_CHECKING

import pytest

from poller.app import once
from poller.clock import Clock
from poller.config.load import load
from tests.harness.scene import RESOURCES, Scene, scene

if TYPE_CHECKING:
    from pathlib import Path

    from poller.source.feed import RoundResult

_RECORDS = 10_000
_ROUNDS = 50
_FEEDS = tuple(f"acme/{resource}" for resource in RESOURCES)
_DELTA_FEEDS = _FEEDS[:-1]
_ALL_EVERY = 10  # achievements cost a request for each qualification, so they are read rarely


@pytest.mark.thorough
async def test_fifty_rounds_replay_to_the_source(tmp_path: Path, store: str) -> None:
    """Each first version is a creation, each change seen is one event, and their replay equals the source."""
    rng = Random(5)
    async with scene(tmp_path, store=store, records=_RECORDS, changes_per_second=0) as played:
        baseline = await _rounds(played, _FEEDS)
        assert {result.mode for result in baseline} == {"baseline"}
        assert sum(result.created for result in baseline) == await played.published() == _RECORDS
        for number in range(1, _ROUNDS + 1):
            await played.change(rng.randrange(1, 60))
            results = await _rounds(played, _DELTA_FEEDS if number % _ALL_EVERY else _FEEDS)
            assert {result.mode for result in results} <= ({"delta", "full"} if number > 1 else {"delta", "reconcile"})
        verdict = await played.verdict()
        assert verdict.clean, verdict
        before = await played.published()
        rest = await _rounds(played, _FEEDS)
        assert sum(result.changes for result in rest) == 0
        assert await played.published() == before == verdict.events


async def _rounds(played: Scene, feeds: tuple[str, ...]) -> list[RoundResult]:
    """One good round of each of these feeds."""
    results: list[RoundResult] = []
    settings = load(played.config(limit="500", ttl="10s"), os.environ)
    assert await once(settings, {}, feeds, clock=Clock(), report=results.append), results
    return results
