"""The network between program and store is half-open, cut, reset, refused or slow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.chaos.fault import Fault, Setting, breakages

if TYPE_CHECKING:
    from random import Random

    from tests.chaos.stage import Stage


async def strike(stage: Stage, rng: Random) -> None:
    wire = stage.wires["store"]
    faults = breakages(wire, rng, most_bytes=2000, most_delay=0.2)
    faults.append(lambda: wire.throttle(50_000))
    rng.choice(faults)()
    await stage.rest(0.2 + 1.5 * rng.random())
    wire.mend()


FAULT = Fault(
    "redis-network",
    "network to Redis: half-open, cut, reset, slow",
    "one entry for each change; recovered within seconds",
    strike,
    Setting(between=frozenset({"store"})),
    most=10,
    replaces=True,
)
