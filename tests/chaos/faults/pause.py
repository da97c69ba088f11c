"""A process is suspended past its leases and replaced; then it resumes and believes that it still has them."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from tests.chaos.fault import Fault
from tests.chaos.stage import TTL
from tests.harness.scene import RESOURCES

if TYPE_CHECKING:
    from random import Random

    from tests.chaos.stage import Stage


async def strike(stage: Stage, rng: Random) -> None:
    """Mostly the others poll meanwhile; sometimes all processes are suspended and resume together."""
    victim = stage.replicas.choose(rng)
    others = stage.replicas.others(victim)
    asleep = [victim, *others] if not rng.randrange(5) else [victim]
    since = {id(one): len(one.lines) for one in others}
    suspended = time.monotonic()
    for one in asleep:
        one.send(signal.SIGSTOP)
        await stage.rest(rng.random() * 0.1)
    await stage.rest(TTL * (1.05 + rng.random() / 2))
    if len(asleep) == 1 and len(others) == 1:
        await others[0].polled(RESOURCES, since=since[id(others[0])])
    rng.shuffle(asleep)
    for one in asleep:
        one.send(signal.SIGCONT)
        await stage.rest(rng.random() * 0.05)
    stage.scene.suspensions.append((suspended, time.monotonic()))


FAULT = Fault(
    "pause",
    "poller stopped past its lease",
    "another process takes over; who wakes is refused",
    strike,
    most=16,
    replaces=True,
)
