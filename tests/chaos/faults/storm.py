"""Two faults together: the store fails, and meanwhile a process of the program ends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.chaos.fault import Fault
from tests.chaos.faults import kill, sigterm, store_freeze, store_kill

if TYPE_CHECKING:
    from random import Random

    from tests.chaos.stage import Stage


async def strike(stage: Stage, rng: Random) -> None:
    of_store = rng.choice((store_kill.strike, store_kill.strike, store_freeze.strike))
    of_poller = rng.choice((kill.strike, kill.strike, sigterm.strike))
    both = [of_store(stage, rng), of_poller(stage, rng)]
    await asyncio.gather(*both)


FAULT = Fault(
    "storm",
    "Redis and a poller together",
    "nothing acknowledged is lost, the work goes on",
    strike,
    most=12,
    replaces=True,
)
