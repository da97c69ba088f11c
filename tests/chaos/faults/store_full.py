"""The store is out of memory for a while and refuses every write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.chaos.asking import answered
from tests.chaos.fault import Fault

if TYPE_CHECKING:
    from random import Random

    from tests.chaos.stage import Stage


async def strike(stage: Stage, rng: Random) -> None:
    client = stage.scene.played.client
    with stage.outage():
        await answered(lambda: client.config_set("maxmemory", 1))
        await stage.rest(0.2 + 2 * rng.random())
        await answered(lambda: client.config_set("maxmemory", 0))


FAULT = Fault(
    "out-of-memory",
    "Redis out of memory",
    "commits are refused whole; goes on when there is room",
    strike,
    most=10,
    replaces=True,
)
