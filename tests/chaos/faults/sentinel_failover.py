"""Sentinel promotes the replica, on command or because the primary is dead."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.chaos.fault import Fault, Setting

if TYPE_CHECKING:
    from random import Random

    from tests.chaos.stage import Stage


async def strike(stage: Stage, rng: Random) -> None:
    sentinels = stage.sentinels
    if rng.randrange(2):
        await asyncio.to_thread(sentinels.fail_over)
        return
    killed = await asyncio.to_thread(sentinels.kill_primary)
    killed.start()
    await asyncio.to_thread(sentinels.settled)


FAULT = Fault(
    "sentinel-failover",
    "failover by Sentinel under load, writes lost",
    "no gaps; what comes again has the same id",
    strike,
    Setting(store="sentinel"),
    most=5,
    replaces=True,
    loses_writes=True,
    patience=90.0,
)
