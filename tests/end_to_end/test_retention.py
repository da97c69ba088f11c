"""The real daemon trims its streams: by age nothing is lost, by size the loss is recorded for its subscription only."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.harness.json_values import read
from tests.harness.processes import daemon, ran
from tests.harness.requests import Arrived, Ended
from tests.harness.scene import stream
from tests.harness.subscribed import Wish, subscribed
from tests.harness.waiting import patience

if TYPE_CHECKING:
    from pathlib import Path

    from redis.asyncio import Redis

    from tests.harness.subscribed import Subscribed

FEED = "contractTypes"
FEEDS = (FEED,)
MAX_BYTES = 128 * 1024
OVERRUN = "poller.subscription.overrun.v1"


def configured(scene: Subscribed, table: str) -> Path:
    path = scene.config()
    path.write_text(f"[retention]\n{table}\n{path.read_text()}")
    return path


def arrived(scene: Subscribed, sink: str) -> set[int]:
    """The sequence numbers of the events that a sink has accepted."""
    lines = scene.sinks.of(sink)
    taken = {line.number for line in lines if isinstance(line, Ended) and line.status == 204}
    return {int(read(line.body)["sequence"]) for line in lines if isinstance(line, Arrived) and line.number in taken}


async def published(scene: Subscribed) -> int:
    return int(await scene.played.client.hget(f"poller:{{acme/{FEED}}}:state", "sequence") or 0)


async def put(scene: Subscribed, first: int, last: int) -> None:
    """Publish new records of 4 KB; about thirty of their events fit."""
    for number in range(first, last + 1):
        await scene.played.put(FEED, {"id": f"r{number}", "name": "x" * 4000})


async def at_sink(scene: Subscribed, sink: str, last: int) -> None:
    """Wait until a sink has all events up to this one."""
    async with patience(f"{last} events at {sink}"):
        await scene.until(lambda: arrived(scene, sink).issuperset(range(1, last + 1)))


async def letters(config: Path) -> list[dict[str, Any]]:
    """The output of ``poller dead-letters list --json``."""
    code, out = await ran("-c", str(config), "dead-letters", "list", "--limit", "100000", "--json")
    assert code == 0
    return [json.loads(line) for line in out.splitlines()]


async def test_a_slow_sink_loses_nothing_by_age(tmp_path: Path, store: str) -> None:
    """Events older than ``age`` are trimmed only after their delivery, however slow the sink is."""
    async with subscribed(tmp_path, [Wish("slow")], store=store, feeds=FEEDS, records=4, changes_per_second=0) as scene:
        client = scene.played.client
        scene.sinks.mood("slow", "hang")
        async with daemon(configured(scene, 'age = "1s"')) as running:
            await put(scene, 1, 80)
            async with patience("the events of all records, past their age"):
                while (total := await published(scene)) < 80 or await youngest(client) < 2.5:
                    await client.xread({stream(FEED): "$"}, count=1, block=50)
            assert await client.xlen(stream(FEED)) == total
            scene.sinks.mood("slow", "ok")
            await at_sink(scene, "slow", total)
            async with patience("an empty stream"):
                since = len(running.lines)
                while await client.xlen(stream(FEED)):
                    await running.until(lambda line: line.get("event") == "trimmed", "t", since=since)
                    since = len(running.lines)
            assert not [line for line in running.lines if line.get("event") == "overrun"]
        assert await letters(scene.config()) == []


async def youngest(client: Redis) -> float:
    """The age of the last event in seconds by the store's clock; 0 if there is none."""
    seconds, _ = await client.time()
    found: Any = await client.xrevrange(stream(FEED), count=1)
    return seconds - int(found[0][0].partition(b"-")[0]) / 1000 if found else 0.0


@pytest.mark.thorough
async def test_a_stream_that_is_too_large(tmp_path: Path, store: str) -> None:
    """A stream is trimmed to its limit; a hanging sink's loss is recorded once, and another sink misses nothing."""
    wishes = [Wish("dead"), Wish("well")]
    async with subscribed(tmp_path, wishes, store=store, feeds=FEEDS, records=4, changes_per_second=0) as scene:
        scene.sinks.mood("dead", "hang")
        config, total = configured(scene, f"max_bytes = {MAX_BYTES}"), 0
        async with daemon(config):
            for first in range(1, 127, 18):
                await put(scene, first, first + 17)
                async with patience("their events"):
                    while (total := await published(scene)) < first + 17:
                        await scene.played.client.xread({stream(FEED): "$"}, count=1, block=50)
                await at_sink(scene, "well", total)
            async with patience("a stream that fits"):
                while (await scene.played.client.memory_usage(stream(FEED), samples=0) or 0) > MAX_BYTES:
                    await scene.played.client.xread({stream(FEED): "$"}, count=1, block=50)
            told = await scene.announced(OVERRUN, "dead")
            assert (told["data"]["group"], told["data"]["feed"]) == ("sub:dead", f"acme/{FEED}")
            scene.sinks.mood("dead", "ok")
            async with patience("the remaining events at the sink"):
                await scene.until(lambda: total in arrived(scene, "dead"))
            found = await letters(config)
            (lost,) = [letter["reason"] for letter in found if letter["kind"] == "overrun"]
            events, first, last = map(int, re.findall(r"\d+", lost)[:3])
            assert (events, first) == (last - first + 1, told["data"]["sequence"])
            delivered = arrived(scene, "dead")
            assert not delivered & set(range(first, last + 1))
            assert len(delivered) + events + len(found) - 1 == total
        assert len(await scene.announcements(OVERRUN)) == 1
