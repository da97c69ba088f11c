"""Webhooks to sinks that fail in every way, from a daemon that is killed or stopped."""

from __future__ import annotations

import signal
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tests.harness.processes import daemon
from tests.harness.subscribed import FEEDS, Wish, subscribed
from tests.harness.waiting import patience, unless

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.harness.delivered import Deliveries
    from tests.harness.subscribed import Subscribed

UNRELIABLE = "ok=20 slow=10 500=3 302=1 503=1 hang=0.4 reset=1 429/1=0.1 429@2=0.05 503/1=0.1"
_KILLS = 2
_STOPS = 4
_SOON = 10.0


async def test_every_event_arrives_at_every_sink_in_order(tmp_path: Path, store: str) -> None:
    """Through two kills two failing sinks get every event at least once, in order, with one id."""
    wishes = [Wish("one"), Wish("two", signed=False)]
    async with subscribed(tmp_path, wishes, store=store, seed=1) as scene:
        verdicts = await _killed_and_caught_up(scene, 1)
    assert not [f"{name}: {found}" for name, found in verdicts.items() if not found.clean]
    assert all(found.repeats for found in verdicts.values()), verdicts


@pytest.mark.thorough
async def test_each_mode_and_filter_arrives(tmp_path: Path, store: str) -> None:
    """With binary mode, batches, one feed or one type each unreliable sink gets exactly the events it selects."""
    wishes = [
        Wish("binary", lines='mode = "binary"'),
        Wish("batch", lines='mode = "batch"\nbatch = { max_events = 20, linger = "50ms" }'),
        Wish("contracts", wants=_of_contracts, lines=f'feeds = ["acme/{FEEDS[0]}"]'),
        Wish(
            "modified", wants=_modified, lines='filters = [ { suffix = { type = ".modified.v1" } } ]\nmode = "binary"'
        ),
    ]
    async with subscribed(tmp_path, wishes, store=store, seed=3) as scene:
        verdicts = await _killed_and_caught_up(scene, 3, kills=1)
    assert not [f"{name}: {found}" for name, found in verdicts.items() if not found.clean]
    assert all(found.events for found in verdicts.values()), verdicts
    assert verdicts["batch"].requests < verdicts["binary"].requests


async def test_told_to_stop_it_stops_and_nothing_comes_again(tmp_path: Path, store: str) -> None:
    """On SIGTERM at random instants the daemon exits with 0, and an event answered with 2xx is never sent again."""
    rng = Random(4)
    async with subscribed(tmp_path, [Wish("one")], store=store, changes_per_second=150) as scene:
        config = scene.config(ttl="10s", sink_timeout="10s")
        scene.sinks.mood("one", "ok=2 slow=3")
        for _ in range(_STOPS):
            async with daemon(config) as stopped:
                await stopped.started()
                await unless(stopped.gone, rng.random() * 0.5)
                stopped.send(signal.SIGTERM)
                async with patience("the daemon to stop", _SOON):
                    assert await stopped.left() == 0, stopped
        async with daemon(config):
            found = (await scene.caught_up())["one"]
    assert found.clean, found
    assert not found.after_success, found


async def _killed_and_caught_up(scene: Subscribed, seed: int, *, kills: int = _KILLS) -> dict[str, Deliveries]:
    """Kill the daemon at random instants, then let the sinks recover and everything arrive."""
    rng, config = Random(seed), scene.config()
    names = [wish.sink for wish in scene.wishes]
    for name in names:
        scene.sinks.mood(name, UNRELIABLE)
    for _ in range(kills):
        async with daemon(config) as killed:
            await scene.more_requests(names[0], 40 + rng.randrange(60))
            await unless(killed.gone, rng.random() * 0.2)
            assert killed.code is None, killed
            await killed.kill()
            await scene.killed()
    async with daemon(config):
        await scene.more_requests(names[0], 50)
        for name in names:
            scene.sinks.mood(name, "ok")
        return await scene.caught_up()


def _of_contracts(event: Mapping[str, Any]) -> bool:
    return ".contractType." in event["type"]


def _modified(event: Mapping[str, Any]) -> bool:
    return ".modified." in event["type"]
