"""The store is suspended for a while with all its connections open, and resumes."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests.chaos.fault import Fault

if TYPE_CHECKING:
    from random import Random

    from tests.chaos.stage import Stage

_SECONDS = (0.3, 2.0, 6.0)
"""Less than a lease; longer than one; longer than the reply timeout."""


async def strike(stage: Stage, rng: Random) -> None:
    with stage.outage():
        stage.store.send(signal.SIGSTOP)
        await stage.rest(rng.choice(_SECONDS))
        stage.store.send(signal.SIGCONT)


FAULT = Fault(
    "redis-freeze",
    "Redis frozen for up to 6 s",
    "who waited goes on; what was sent meanwhile counts once",
    strike,
    most=10,
    replaces=True,
)
