"""The store's machine loses power: up to a second of its append-only file was never written."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tests.chaos.fault import Fault, Setting
from tests.harness.waiting import until

if TYPE_CHECKING:
    from random import Random

    from tests.chaos.stage import Stage

_MOST_BYTES = 60_000


async def strike(stage: Stage, rng: Random) -> None:
    """Truncate the file anywhere, even within a command; the server drops an incomplete end."""
    log = stage.store.log
    await until(lambda: log.stat().st_size > stage.begun + _MOST_BYTES, "a log longer than the cut")
    stage.store.kill()
    os.truncate(log, log.stat().st_size - rng.randrange(_MOST_BYTES))
    await stage.store.start()


FAULT = Fault(
    "power-cut",
    "power cut under Redis, `everysec`: writes lost",
    "read again: no gaps; what comes again has the same id",
    strike,
    Setting(appendfsync="everysec"),
    replaces=True,
    loses_writes=True,
)
