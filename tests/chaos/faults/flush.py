"""The store loses all its data, or all data of one feed."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from tests.chaos.asking import answered
from tests.chaos.fault import Fault
from tests.harness.scene import RESOURCES

if TYPE_CHECKING:
    from random import Random

    from redis.asyncio import Redis

    from tests.chaos.stage import Stage


async def strike(stage: Stage, rng: Random) -> None:
    client, feed = stage.scene.played.client, rng.choice(RESOURCES)
    if rng.randrange(2):
        await answered(client.flushall)
        stage.begun_anew.update(RESOURCES)
    else:
        await answered(lambda: _without(client, feed))
        stage.begun_anew.add(feed)


async def _without(client: Redis, feed: str) -> None:
    names = [cast("bytes", name) async for name in client.scan_iter(f"poller:{{acme/{feed}}}:*", count=1000)]
    if names:
        await client.delete(*names)


FAULT = Fault(
    "flush",
    "`FLUSHALL`, or a feed's keys gone",
    "noticed; a new baseline in the stream, and no storm to webhooks",
    strike,
    most=5,
    replaces=True,
    loses_writes=True,
)
