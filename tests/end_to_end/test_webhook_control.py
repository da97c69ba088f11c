"""Control: the scenes catch a naive dispatcher, with the same sinks, kills and judge."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.harness.processes import daemon
from tests.harness.subscribed import Wish, subscribed

if TYPE_CHECKING:
    from pathlib import Path

_POLL = ("poller", "run", "--only", "poll")
_NAIVE = ("tests.harness.naive_dispatcher",)
_WISH = Wish("one", signed=False)
_MOOD = "ok=4 slow=4 500=3 429/5=2"  # a run has a hundred requests, so it has a 429

pytestmark = pytest.mark.usefixtures("one_server")  # naive daemons know no other store


@pytest.mark.thorough
async def test_a_naive_dispatcher_is_caught(tmp_path: Path, store: str) -> None:
    """A naive dispatcher loses events when killed after its acknowledgement, and sends out of order and too early."""
    async with subscribed(tmp_path, [_WISH], store=store) as scene, daemon(scene.config(), command=_POLL):
        scene.sinks.mood("one", _MOOD)
        for _ in range(2):
            async with daemon(scene.config(), command=_NAIVE) as killed:
                await killed.started()
                await scene.more("one", 80)
                scene.sinks.mood("one", "500")
                await scene.more_requests("one", 20)
                await killed.kill()
                await scene.killed()
                scene.sinks.mood("one", _MOOD)
        found = await scene.verdict(_WISH)
    assert found.lost, found
    assert found.out_of_order, found
    assert found.early, found
    assert not found.altered, found


@pytest.mark.thorough
async def test_at_a_sink_without_faults_even_the_naive_one_loses_nothing(tmp_path: Path, store: str) -> None:
    """Without faults and with one event for each record even the naive dispatcher loses nothing."""
    async with (
        subscribed(tmp_path, [_WISH], store=store, changes_per_second=0) as scene,
        daemon(scene.config(), command=_POLL),
        daemon(scene.config(), command=_NAIVE),
    ):
        found = (await scene.caught_up())["one"]
    assert found.clean, found
    assert found.events >= 10
