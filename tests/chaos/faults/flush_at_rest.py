"""The store loses all its data, or all of one feed but for the digests of its pages, while nothing changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from tests.chaos.asking import answered
from tests.chaos.fault import Fault
from tests.chaos.remembered import SETTING, Quiet
from tests.harness.scene import RESOURCES

if TYPE_CHECKING:
    from random import Random

    from redis.asyncio import Redis

    from tests.chaos.stage import Stage


async def strike(stage: Stage, rng: Random) -> None:
    """What the processes remember is all that says that the source is as it was."""
    quiet = await Quiet.begin(stage)
    client, feed = stage.scene.played.client, rng.choice(RESOURCES)
    if rng.randrange(3):
        await answered(client.flushall)
        stage.begun_anew.update(RESOURCES)
    else:
        await answered(lambda: _without(client, feed))
        stage.begun_anew.add(feed)
    await quiet.rest()
    await quiet.change(rng)
    if rng.randrange(2):
        await quiet.published()
        await quiet.back()
    await quiet.end()


async def _without(client: Redis, feed: str) -> None:
    names = [cast("bytes", name) async for name in client.scan_iter(f"poller:{{acme/{feed}}}:*", count=1000)]
    if gone := [name for name in names if not name.endswith(b":page_digests")]:
        await client.delete(*gone)


FAULT = Fault(
    "flush-at-rest",
    "`FLUSHALL`, or a feed's keys gone, while nothing changes",
    "noticed; all is read and published again, although the API calls it unchanged",
    strike,
    SETTING,
    most=5,
    replaces=True,
    loses_writes=True,
)
