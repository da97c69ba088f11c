"""A backfill under load and kills: ``python -m tests.chaos.backfill --records 100000 --rate 1000 --kills 10``.

A feed has records of which the stream holds nothing any more, and changes all the time. Two daemons deliver it to a
subscription that begins with its snapshots; the one that delivers is killed with -9 again and again in the middle of
the backfill, and started again. The judge wants the present state and each later change, in rising revisions. A naive
reader, which scans first and then follows the stream, is before the same judge at the same time.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from poller.redis.client import commands
from poller.store.backfill import backfill_of
from poller.store.keys import ConsumerKeys
from tests.harness.backfilled import FEED, BackfillJudge, ChangingFeed, naive_reader
from tests.harness.processes import daemon
from tests.harness.waiting import until
from tests.receiver import Received, Reply, receiving
from tests.servers import running

if TYPE_CHECKING:
    from redis.asyncio import Redis

SUBSCRIPTION: Final = "late"
KEYS: Final = ConsumerKeys.of("poller", FEED, SUBSCRIPTION)
MAX_EVENTS: Final = 100
IN_MEMORY: Final = 4 * MAX_EVENTS + 16
"""Backfilled events behind the position that is written: the window, and what one scan reads beyond."""
CONFIG: Final = """
redis = {{ url = "{url}" }}
http = {{ bind = "off" }}
lease = {{ ttl = "2s" }}
[[sources]]
name = "acme"
base_url = "http://127.0.0.1:1"
auth = {{ none = true }}
[[sources.feeds]]
resource = "employmentUnavailabilities"
[[subscriptions]]
id = "late"
sink = "{sink}"
start = "snapshot"
allow_private = true
mode = "batch"
batch = {{ max_events = {events}, linger = "10ms" }}
"""
DELIVER: Final = ("poller", "run", "--only", "deliver")


@dataclass(slots=True)
class BackfillOutcome:
    """What came of a run.

    Attributes:
        judge: of the subscriber.
        missed: records of which something is missing.
        naive: the judge of the naive reader.
        naive_missed: likewise.
        kills: how often a daemon that delivered was killed.
        seconds: from the start of the daemons to the end of the backfill.
    """

    judge: BackfillJudge
    missed: list[str]
    naive: BackfillJudge
    naive_missed: list[str]
    kills: int
    seconds: float

    @property
    def held(self) -> bool:
        """Whether nothing was missed or fell, and only what was in memory or in flight at a kill came again."""
        live, told = self.judge.again[False], self.judge.again[True]
        return not (
            self.missed or self.judge.fallen or live > self.kills * 8 * MAX_EVENTS or told > self.kills * IN_MEMORY
        )

    def __str__(self) -> str:
        judge, naive, live, backfilled = self.judge, self.naive, self.judge.again[False], self.judge.again[True]
        return (
            f"{judge.records} records, {judge.events} events, {judge.backfilled} of them backfilled, in "
            f"{self.seconds:.1f} s; {self.kills} kills; missed {len(self.missed)}, fallen {len(judge.fallen)}, again: "
            f"{backfilled} backfilled, {live} others. The naive reader: {naive.events} events, missed "
            f"{len(self.naive_missed)}, fallen {len(naive.fallen)}"
        )


async def played(url: str, directory: Path, *, records: int, rate: float, kills: int, seed: int) -> BackfillOutcome:
    """Play it on an empty store."""
    judge, naive, rng, over = BackfillJudge(), BackfillJudge(), Random(seed), asyncio.Event()

    def answer(request: Received) -> Reply:
        judge.add(request.body)
        return Reply(204)

    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(commands(url))
        sink = await stack.enter_async_context(receiving(answer, recording=False))
        config = directory / "poller.toml"
        config.write_text(CONFIG.format(url=url, sink=sink.url, events=MAX_EVENTS), "utf-8")
        feed = ChangingFeed(client)
        await feed.fill(records)
        changing = asyncio.create_task(feed.change(rate, rng, over))
        scanned, nearly_over = asyncio.Event(), asyncio.Event()
        reading = asyncio.create_task(naive_reader(client, naive, nearly_over, pause=scanned))
        daemons = [await stack.enter_async_context(daemon(config, command=DELIVER)) for _ in range(2)]
        names = [await one.started() for one in daemons]
        began, done = time.monotonic(), 0
        for number in range(1, kills + 1):
            wanted = records * number // (kills + 1)
            await until(lambda: _is_at(judge, wanted, changing), f"{wanted} backfilled events", seconds=300)  # noqa: B023 -- awaited here
            killed = await _owner(client, names)
            if killed is not None and await backfill_of(client, KEYS):
                await daemons[killed].kill()
                done += 1
                daemons[killed] = await stack.enter_async_context(daemon(config, command=DELIVER))
                names[killed] = await daemons[killed].started()
        await until(lambda: has_ended(client), "the end of the backfill", seconds=600)
        seconds = time.monotonic() - began
        over.set()
        await changing
        nearly_over.set()
        await reading
        await until(lambda: judge.is_level(feed.revisions), "the last changes", seconds=300)
        await until(lambda: _is_settled(client, feed.keys.events), "all to be settled", seconds=60)
        return BackfillOutcome(judge, judge.missed(feed.revisions), naive, naive.missed(feed.revisions), done, seconds)


def _is_at(judge: BackfillJudge, wanted: int, changing: asyncio.Task[None]) -> bool:
    assert not changing.done(), changing
    return judge.backfilled >= wanted


async def _owner(client: Redis, names: list[str]) -> int | None:
    """The daemon that delivers."""

    async def held() -> bool:
        return await client.get(KEYS.lease) is not None

    await until(held, "a daemon that delivers")
    found: Any = await client.get(KEYS.lease)
    holder = (found or b"").decode()
    return next((place for place, name in enumerate(names) if holder.startswith(name)), None)


async def has_ended(client: Redis) -> bool:
    """Whether the subscription's backfill was completed."""
    return await backfill_of(client, KEYS) is None and bool(await client.hexists(KEYS.state, "backfilled"))


async def _is_settled(client: Redis, events: str) -> bool:
    groups: Any = await client.xinfo_groups(events)
    return not groups[0]["pending"] and not await client.hlen(KEYS.parked)


def main(arguments: list[str] | None = None) -> int:
    """Play it once, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rate", type=float, default=1000.0, help="changes a second")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", choices=("valkey", "redis"), default="valkey")
    given = parser.parse_args(arguments)
    with TemporaryDirectory() as directory:
        place = Path(directory)
        (place / "store").mkdir()
        with running(given.store, place / "store", appendfsync="everysec") as server:
            outcome = asyncio.run(
                played(server.url, place, records=given.records, rate=given.rate, kills=given.kills, seed=given.seed)
            )
    sys.stdout.write(f"{outcome}\n")
    return 0 if outcome.held and outcome.naive_missed else 1


if __name__ == "__main__":
    sys.exit(main())
