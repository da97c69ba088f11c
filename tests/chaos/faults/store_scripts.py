"""The store forgets all scripts, and is sometimes busy with a foreign one."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from tests.chaos.asking import answered
from tests.chaos.fault import Fault, Setting

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from random import Random

    from tests.chaos.stage import Stage

_BUSY = "for i = 1, ARGV[1] do end"
_TURNS = 60_000_000  # most of a second


async def strike(stage: Stage, rng: Random) -> None:
    client = stage.scene.played.client
    for _ in range(3):
        await answered(client.script_flush)
        await stage.rest(rng.random() * 0.05)
    turns = str(rng.randrange(_TURNS))
    with stage.outage():
        await answered(lambda: cast("Awaitable[None]", client.eval(_BUSY, 0, turns)))
        await answered(client.script_flush)


FAULT = Fault(
    "noscript",
    "scripts forgotten, `NOSCRIPT` and `BUSY`",
    "loaded again, nothing doubled",
    strike,
    Setting(options={"busy-reply-threshold": "50"}),
    replaces=True,
)
