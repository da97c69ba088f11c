"""An older version is held back for a minute; meanwhile a process ends, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.chaos.fault import Fault
from tests.chaos.remembered import SETTING, Quiet

if TYPE_CHECKING:
    from random import Random

    from tests.chaos.stage import Stage

_NEWEST = "evidenceVariants"
_MINUTE = 60.0
_AT_MOST = 0.9  # of the minute until the process ends


async def strike(stage: Stage, rng: Random) -> None:
    """The second of two readings a minute apart has the bytes of the first one, and has to publish that version."""
    quiet = await Quiet.begin(stage)
    await quiet.older(_NEWEST)
    if rng.randrange(2):
        await stage.rest(rng.random() * _AT_MOST * _MINUTE)
        victim = stage.replicas.choose(rng)
        await victim.kill()
        await stage.killed()
        await stage.replicas.replace(victim)
    await quiet.end(later=_MINUTE)


FAULT = Fault(
    "held-back",
    "an older version held back while nothing changes, and `kill -9`",
    "published by the reading that has seen it twice",
    strike,
    replace(SETTING, feeds={**SETTING.feeds, _NEWEST: f'{SETTING.feeds[_NEWEST]}\nversions = "newest"'}),
    most=2,
)
