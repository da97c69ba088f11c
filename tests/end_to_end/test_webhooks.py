"""Webhooks to sinks that fail in every way, from a daemon that is killed or stopped."""

from __future__ import annotations

import json
import signal
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from tests.harness.json_values import read
from tests.harness.processes import daemon
from tests.harness.requests import Arrived
from tests.harness.subscribed import FEEDS, Wish, subscribed
from tests.harness.waiting import patience, unless

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
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


@pytest.mark.thorough
async def test_what_is_left_of_each_event_arrives(tmp_path: Path, store: str) -> None:
    """Through a kill, failing sinks with ``fields`` or ``thin`` get exactly what these leave, signed, and nothing else.

    The judge knows what is left by a cut of its own; a change of dropped fields alone is not to arrive.
    """
    lines = {
        "thin": "thin = true",
        "dropped": 'fields = { drop = ["/name", "/lastModifiedAt"] }\nmode = "batch"\nbatch = { linger = "20ms" }',
        "picked": 'fields = { pick = ["/externalCode"] }\nmode = "binary"',
        "chosen": 'when = { not_cause = ["baseline"] }\ntypes = ["modified"]',
    }
    feed = f'feeds = ["acme/{FEEDS[0]}"]\n'
    wishes = [
        Wish("thin", sent=_thin, lines=feed + lines["thin"]),
        Wish("dropped", _shows(_without), feed + lines["dropped"], sent=_cut(_without)),
        Wish("picked", _shows(_picked), feed + lines["picked"], sent=_cut(_picked)),
        Wish("chosen", _modified, feed + lines["chosen"]),
    ]
    # Few of a source's changes are of this feed.
    async with subscribed(tmp_path, wishes, store=store, seed=5, feeds=FEEDS[:1], changes_per_second=300) as scene:
        verdicts = await _killed_and_caught_up(scene, 5, kills=1)
        whole = {read(event)["id"] for _, event in await scene.entries(FEEDS[0])}
        assert not scene.taken("dropped") >= whole
        sent = b"".join(one.body for one in scene.sinks.of("dropped") if isinstance(one, Arrived))
    assert not [f"{name}: {found}" for name, found in verdicts.items() if not found.clean]
    assert all(found.events for found in verdicts.values()), verdicts
    assert b'"externalCode"' in sent
    assert not [name for name in (b'"name"', b"lastModifiedAt") if name in sent]


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


def _without(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in {"name", "lastModifiedAt"}}


def _picked(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name in {"id", "externalCode"}}


def _left(event: Mapping[str, Any], cut: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any] | None:
    """The event with cut records; None: they do not differ. Records of the feed have no objects inside."""
    data = dict(event["data"])
    sides = {name: cut(data[name]) for name in ("record", "previous") if name in data}
    if "changed" in data:
        before, after = sides["previous"], sides["record"]
        names = sorted(before.keys() | after.keys())
        data["changed"] = [f"/{name}" for name in names if before.get(name) != after.get(name)]
        if not data["changed"]:
            return None
    time = event["recordedtime"] if cut is _without else event["time"]
    return {**event, "time": time, "data": data | sides}


def _shows(cut: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Mapping[str, Any]], bool]:
    return lambda event: _left(event, cut) is not None


def _cut(cut: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[bytes], bytes]:
    def sent(text: bytes) -> bytes:
        event = json.loads(text)
        return json.dumps(_left(event, cut) or event).encode()

    return sent


def _thin(text: bytes) -> bytes:
    event = json.loads(text)
    left = {name: value for name, value in event["data"].items() if name in {"changed", "revision", "cause"}}
    return json.dumps(event | {"data": left}).encode()
