"""A process of the program is killed with SIGKILL at a random instant, and another one is started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.chaos.fault import Fault

if TYPE_CHECKING:
    from random import Random

    from tests.chaos.stage import Stage


async def strike(stage: Stage, rng: Random) -> None:
    victim = stage.replicas.choose(rng)
    await victim.kill()
    await stage.killed()
    await stage.replicas.replace(victim)


FAULT = Fault(
    "kill",
    "`kill -9` of the poller",
    "another process goes on where it was",
    strike,
    most=25,
)
