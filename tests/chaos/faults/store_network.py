"""The network between program and store: half-open, cut, reset, refused, slow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.chaos.fault import Fault, Setting

if TYPE_CHECKING:
    from random import Random

    from tests.chaos.stage import Stage

_MOST_BYTES = 2000


async def strike(stage: Stage, rng: Random) -> None:
    wire = stage.wires["store"]
    fault = rng.choice(
        (
            wire.silence,
            wire.refuse,
            wire.reset,
            lambda: wire.cut(rng.randrange(_MOST_BYTES)),
            lambda: wire.delay(rng.random() * 0.2),
            lambda: wire.throttle(50_000),
        )
    )
    fault()
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
