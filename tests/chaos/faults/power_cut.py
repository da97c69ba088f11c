"""The store's machine loses power: the end of its append-only file, up to a second of it, was never written."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tests.chaos.fault import Fault, Setting

if TYPE_CHECKING:
    from random import Random

    from tests.chaos.stage import Stage

_MOST_BYTES = 60_000


async def strike(stage: Stage, rng: Random) -> None:
    """Cut anywhere, in the middle of a command too: the server drops what is not whole."""
    stage.store.kill()
    log = stage.store.log
    size = log.stat().st_size
    os.truncate(log, max(size - rng.randrange(_MOST_BYTES), size // 2))
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
