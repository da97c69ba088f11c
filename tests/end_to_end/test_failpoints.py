"""The daemon is killed at each failpoint of a round, and the next one continues."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from poller.failpoints import OF_ROUNDS
from poller.resources import ACHIEVEMENTS
from tests.harness.processes import daemon
from tests.harness.scene import RESOURCES, Scene, scene

if TYPE_CHECKING:
    from pathlib import Path

_BEFORE_ANY_COMMIT = ("lease.taken", "page.fetched", "known.read", "commit.planned")


@pytest.mark.parametrize("passes", [(1,), pytest.param((1, 3), marks=pytest.mark.thorough)], ids=["once", "twice"])
@pytest.mark.parametrize("point", OF_ROUNDS)
async def test_dying_there_loses_nothing(point: str, passes: tuple[int, ...], tmp_path: Path, store: str) -> None:
    """After a kill at these passes of a failpoint everything is published exactly once."""
    async with scene(tmp_path, store=store, seed=OF_ROUNDS.index(point)) as played:
        for number in passes:
            await _die_at(played, f"{point}:{number}")
            if number == 1:
                assert await _committed(played, point) == (point not in _BEFORE_ANY_COMMIT)
        async with daemon(played.config()):
            verdict = await played.caught_up()
    assert verdict.clean, verdict
    assert verdict.events


async def _die_at(played: Scene, failpoint: str) -> None:
    async with daemon(played.config(), failpoint=failpoint) as dying:
        if failpoint.startswith("lease.released"):
            await dying.polled(RESOURCES)
            dying.send(signal.SIGTERM)
        assert await dying.left() == -signal.SIGKILL, dying


async def _committed(played: Scene, point: str) -> bool:
    """Whether anything but a lease and an empty state was ever written.

    A round of achievements without a known qualification commits without a page, so its commit may have come first.
    """
    with_pages = point in {"page.fetched", "known.read"}
    resources = [resource for resource in RESOURCES if not (with_pages and resource == ACHIEVEMENTS)]
    states = [await played.client.hkeys(f"poller:{{acme/{resource}}}:state") for resource in resources]
    return any(b"digest" in names for names in states)
