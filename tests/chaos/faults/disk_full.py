"""The disk of the store's append-only file is full for a while, and writes are refused."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

from tests.chaos.fault import Fault, Setting

if TYPE_CHECKING:
    from random import Random

    from tests.chaos.stage import Stage

_MOST_LEFT = 5000  # bytes
_NO_LIMIT = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


async def strike(stage: Stage, rng: Random) -> None:
    """Limit the size of the server's files, which acts like a full disk: the last write may be partial."""
    left = stage.store.log.stat().st_size + rng.randrange(_MOST_LEFT)
    with stage.outage():
        resource.prlimit(stage.store.pid, resource.RLIMIT_FSIZE, (left, resource.RLIM_INFINITY))
        await stage.rest(0.5 + 2 * rng.random())
        resource.prlimit(stage.store.pid, resource.RLIMIT_FSIZE, _NO_LIMIT)


FAULT = Fault(
    "disk-full",
    "disk full under Redis' log, `everysec`",
    "commits are refused whole; goes on when there is space",
    strike,
    Setting(appendfsync="everysec"),
    most=10,
    replaces=True,
)
