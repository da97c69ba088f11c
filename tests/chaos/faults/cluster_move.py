"""A slot moves to another primary with all its keys while commits write them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.chaos.fault import Fault, Setting
from tests.harness.scene import RESOURCES, stream

if TYPE_CHECKING:
    from random import Random

    from tests.chaos.stage import Stage


async def strike(stage: Stage, rng: Random) -> None:
    """Move the slot in one go, or with a pause during which the keys are split between two nodes."""
    cluster, key = stage.cluster, stream(rng.choice(RESOURCES))
    if rng.randrange(2):
        await asyncio.to_thread(cluster.move_slot, key)
        return
    source, primaries = await asyncio.to_thread(lambda: (cluster.primary_of(key), cluster.primaries))
    to = rng.choice([one for one in primaries if one is not source])
    await asyncio.to_thread(cluster.begin_move, key, to)
    await asyncio.to_thread(cluster.move_keys, key, to, most=rng.randrange(1, 6))
    await stage.rest(rng.random())
    await asyncio.to_thread(cluster.move_slot, key, to)


FAULT = Fault(
    "slot-move",
    "slot migration under load",
    "`MOVED`, `ASK`, `TRYAGAIN` followed, nothing doubled",
    strike,
    Setting(store="cluster"),
    most=10,
    replaces=True,
)
