"""A process gets a stop signal at any instant, and another one is started."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests.chaos.fault import Fault
from tests.harness.waiting import patience

if TYPE_CHECKING:
    from random import Random

    from tests.chaos.stage import Stage

_LONGEST = 10.0


async def strike(stage: Stage, rng: Random) -> None:
    victim = stage.replicas.choose(rng)
    number = rng.choice((signal.SIGTERM, signal.SIGINT))
    # While it is being imported, Python may lose a SIGINT in code that clears every error; the kernel loses no SIGTERM.
    victim.send(number if victim.lines else signal.SIGTERM)
    async with patience("the process to stop", _LONGEST):
        code = await victim.left()
    if code and victim.lines:  # without any log line it did not handle signals yet
        stage.remarks.append(f"a stopped process exited with {code}: {victim}")
    await stage.replicas.replace(victim)


FAULT = Fault(
    "sigterm",
    "SIGTERM at any instant",
    "exit code 0 within 10 s, the work goes on elsewhere",
    strike,
    most=25,
)
