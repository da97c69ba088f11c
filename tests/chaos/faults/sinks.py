"""Sinks hang, fail, are slow, or disconnect after a few bytes: one of the two, or the network to both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.chaos.fault import Fault, Setting, breakages
from tests.chaos.stage import MOODS

if TYPE_CHECKING:
    from random import Random

    from tests.chaos.stage import Stage

_BAD_MOODS = ("hang", "reset", "503", "429/1", "500=1 hang=1 reset=1")


async def strike(stage: Stage, rng: Random) -> None:
    wire, sink = stage.wires["sinks"], rng.choice(stage.scene.wishes).sink
    faults = breakages(wire, rng, most_bytes=200, most_delay=0.5)
    faults.append(lambda: stage.scene.sinks.mood(sink, rng.choice(_BAD_MOODS)))
    rng.choice(faults)()
    await stage.rest(0.2 + rng.random())
    wire.mend()
    stage.scene.sinks.mood(sink, MOODS)


FAULT = Fault(
    "sinks",
    "sinks hang, refuse, reset, cut, delay",
    "nothing lost, order kept for each record",
    strike,
    Setting(between=frozenset({"sinks"})),
)
