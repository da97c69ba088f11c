"""The clock of the store, which the processes use, is set hours or a day off and back.

Set ahead, it ends all leases; set back, it would extend them for hours, and a process killed then must be replaced all
the same. No sink asks for a pause here, because a clock set ahead misstates how much of it has passed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.chaos.fault import Fault, Setting
from tests.chaos.faults.clock import faked_by, missing, set_clock
from tests.chaos.stage import MOODS

if TYPE_CHECKING:
    from random import Random

    from tests.chaos.stage import Stage

_HOURS = (-24, -1, 1, 24)
_WITHOUT_PAUSES = " ".join(mood for mood in MOODS.split() if "/" not in mood)


async def strike(stage: Stage, rng: Random) -> None:
    for wish in stage.scene.wishes:
        stage.scene.sinks.mood(wish.sink, _WITHOUT_PAUSES)
    for offset in (f"{rng.choice(_HOURS):+d}h", "+0"):
        set_clock(stage.directory / "clock", offset)
        await stage.rest(0.3 + rng.random())
        if rng.random() < 0.5:
            victim = stage.replicas.choose(rng)
            await victim.kill()
            await stage.killed()
            await stage.replicas.replace(victim)


FAULT = Fault(
    "store-clock",
    "clock of the store set hours or a day either way",
    "leases and members end in time, nothing is kept waiting",
    strike,
    Setting(store_environ=faked_by("clock")),
    most=10,
    replaces=True,
    missing=missing,
)
