"""A process dies at a failpoint of a round or a delivery, and another one continues."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from poller.failpoints import OF_DELIVERIES, OF_ROUNDS
from tests.chaos.fault import Fault

if TYPE_CHECKING:
    from random import Random

    from tests.chaos.stage import Stage
    from tests.harness.processes import Daemon

_LATEST = 6
_ON_THE_WAY_OUT = "lease.released"


async def strike(stage: Stage, rng: Random) -> None:
    """Start a process that will die, end the others so that it gets all the work, then start two again."""
    point = rng.choice(OF_ROUNDS + OF_DELIVERIES)
    before = list(stage.replicas.running)
    times = 1 if point == _ON_THE_WAY_OUT else rng.randint(1, 2 * _LATEST if point in OF_DELIVERIES else _LATEST)
    dying = await stage.replicas.add(failpoint=f"{point}:{times}")
    await dying.until(lambda line: line.get("event") == "started", f"its start, to die at {point}:{times}")
    for one in before:
        await _made_way(stage, one, rng)
    if point == _ON_THE_WAY_OUT:
        await dying.until(lambda line: line.get("event") == "round", "a round, and so a lease to release")
        dying.send(signal.SIGTERM)
    if await dying.left() != -signal.SIGKILL:
        stage.remarks.append(f"did not die at {point}:{times}: {dying}")
    await stage.killed()
    await stage.replicas.replace(dying)
    await stage.replicas.add()


async def _made_way(stage: Stage, one: Daemon, rng: Random) -> None:
    await stage.end(one, rng)
    stage.replicas.running.remove(one)


FAULT = Fault(
    "failpoint",
    "death at each place of a round and of a delivery",
    "another process goes on where it was",
    strike,
    most=13,
)
