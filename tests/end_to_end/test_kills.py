"""Daemons are killed with SIGKILL at random instants."""

from __future__ import annotations

import signal
from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.harness.processes import daemon
from tests.harness.scene import scene
from tests.harness.waiting import unless

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.thorough
@pytest.mark.parametrize(("kills", "seed"), [(4, 1), (10, 1), (10, 2)])
async def test_kills_lose_and_double_nothing(kills: int, seed: int, tmp_path: Path, store: str) -> None:
    """After kills at random instants the next daemon continues, and nothing is lost or doubled."""
    rng = Random(seed)
    async with scene(tmp_path, store=store, records=400, changes_per_second=60, seed=seed) as played:
        config = played.config(limit="20")
        for _ in range(kills):
            async with daemon(config) as killed:
                await killed.started()
                await played.growth(rng.randrange(60), unless=killed.gone)
                await unless(killed.gone, rng.random() * 0.15)
                assert killed.code is None, killed
                await killed.kill()
                assert killed.code == -signal.SIGKILL
        async with daemon(config):
            verdict = await played.caught_up()
    assert verdict.clean, verdict
    assert verdict.events >= 400
