"""Processes with wall clocks far from the store's and each other's are replaced by others with other clocks.

Each strike ends one process, by SIGTERM or SIGKILL, and starts another whose clock is days or hours off, or right;
while it works, its clock jumps once more.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests.chaos.fault import Fault, Setting
from tests.chaos.faults.clock import faked_by, missing, set_clock

if TYPE_CHECKING:
    from random import Random

    from tests.chaos.stage import Stage

_OFFSETS = ("-30d", "-1h", "+0", "+1h", "+30d")


async def strike(stage: Stage, rng: Random) -> None:
    victim, clock = stage.replicas.choose(rng), stage.directory / f"clock-{len(stage.replicas.started)}"
    if rng.random() < 0.5:
        await victim.kill()
        await stage.killed()
    else:
        victim.send(signal.SIGTERM)
        await victim.left()
    first, second = rng.sample(_OFFSETS, 2)
    set_clock(clock, first)
    started = await stage.replicas.replace(victim, FAKETIME_TIMESTAMP_FILE=str(clock))
    await started.started()
    await stage.rest(0.2 + rng.random())
    set_clock(clock, second)


FAULT = Fault(
    "clocks-apart",
    "wall clocks of the processes days apart, and jumping",
    "no process is silent, trims or disables by its own clock",
    strike,
    Setting(environ=faked_by("clock")),
    most=10,
    missing=missing,
)
