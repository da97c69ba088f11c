"""The store is killed with SIGKILL and restarted soon; every acknowledged write was on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.chaos.fault import Fault

if TYPE_CHECKING:
    from random import Random

    from tests.chaos.stage import Stage


async def strike(stage: Stage, rng: Random) -> None:
    """The store is down for less than a lease, or for longer."""
    with stage.outage():
        stage.store.kill()
        await stage.rest(rng.choice((0.0, 0.3, 1.5)) * rng.random())
        await stage.store.start()


FAULT = Fault(
    "redis-kill",
    "`kill -9` of Redis, `appendfsync always`",
    "nothing acknowledged is lost",
    strike,
    replaces=True,
)
