"""The store's machine loses power: the end of its append-only file, up to a second of it, was never written."""

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
    """Cut anywhere, in the middle of a command too: the server drops what is not whole."""
    log = stage.store.log
    await until(lambda: log.stat().st_size > stage.begun + _MOST_BYTES, "as much of a log as is cut off")
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
