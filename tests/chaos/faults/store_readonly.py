"""The store becomes a replica of an unreachable primary: it serves reads and refuses writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.chaos.asking import answered
from tests.chaos.fault import Fault

if TYPE_CHECKING:
    from random import Random

    from tests.chaos.stage import Stage

_NOBODY = ("127.0.0.1", "1")


async def strike(stage: Stage, rng: Random) -> None:
    client = stage.scene.played.client
    with stage.outage():
        await answered(lambda: client.replicaof(*_NOBODY))
        await stage.rest(0.2 + 2 * rng.random())
        await answered(lambda: client.replicaof("NO", "ONE"))


FAULT = Fault(
    "readonly",
    "Redis a replica: `READONLY`",
    "tried again, nothing doubled",
    strike,
    most=10,
    replaces=True,
)
