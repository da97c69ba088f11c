"""A process is suspended with what it remembers of its feeds; others write these, and leave them to it again."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from tests.chaos.asking import answered
from tests.chaos.fault import Fault
from tests.chaos.remembered import SETTING, Quiet
from tests.chaos.replicas import of_round
from tests.chaos.stage import TTL
from tests.harness.scene import RESOURCES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from tests.chaos.stage import Stage
    from tests.harness.processes import Daemon

_CHANGES = 60
_MOST = 3


async def strike(stage: Stage, rng: Random) -> None:
    """One process gets all feeds and is suspended; others get them; it is woken while these are suspended."""
    while len(stage.replicas.running) < rng.choice((_MOST - 1, _MOST)):
        added = await stage.replicas.add()
        await added.until(of_round, "a round: then it has also heard of the feeds of the others")
    victim = stage.replicas.choose(rng)
    others, alone = stage.replicas.others(victim), time.monotonic()
    _send(others, signal.SIGSTOP)
    await stage.rest(TTL * 1.1)
    await victim.polled(RESOURCES, since=len(victim.lines))
    quiet = await Quiet.begin(stage)
    meanwhile = rng.choice((_changed_back, _changed_back, _moved, _flushed, _counted))
    if meanwhile is _counted:
        await quiet.remove()
        await quiet.rest()
        await quiet.change_others()  # whoever reads that has counted what is removed
        await quiet.rest()
    victim.send(signal.SIGSTOP)
    _send(others, signal.SIGCONT)
    stage.scene.suspensions.append((alone, time.monotonic()))
    suspended = time.monotonic()
    await meanwhile(stage, quiet, rng)
    _send(others, signal.SIGSTOP)
    await (quiet.remove_others() if meanwhile is _counted else quiet.back())
    await stage.rest(TTL * 1.1)
    since = len(victim.lines)
    victim.send(signal.SIGCONT)
    await victim.polled(RESOURCES, since=since)
    await quiet.published()
    _send(others, signal.SIGCONT)
    stage.scene.suspensions.append((suspended, time.monotonic()))
    if rng.randrange(2) or meanwhile is _flushed:  # the others have to read what it has written
        await victim.kill()
        await stage.killed()
        await stage.replicas.replace(victim)
        await quiet.change(rng)
    await quiet.end()


async def _changed_back(_stage: Stage, quiet: Quiet, rng: Random) -> None:
    """The others publish a change; then the source goes back to what the sleeper knows."""
    await quiet.change(rng)
    await quiet.rest()


async def _moved(stage: Stage, quiet: Quiet, rng: Random) -> None:
    """The others publish many changes."""
    await stage.scene.played.change(_CHANGES)
    await quiet.change(rng)
    await quiet.rest()


async def _flushed(stage: Stage, quiet: Quiet, rng: Random) -> None:
    """The others read everything again, and pack it with other dictionaries."""
    await answered(stage.scene.played.client.flushall)
    stage.begun_anew.update(RESOURCES)
    await quiet.change(rng)
    await quiet.rest()


async def _counted(_stage: Stage, quiet: Quiet, _rng: Random) -> None:
    """Removed records come back; once as many others are gone, the numbers are those that the sleeper remembers."""
    await quiet.back()
    await quiet.rest()


def _send(to: Sequence[Daemon], number: signal.Signals) -> None:
    for one in to:
        one.send(number)


FAULT = Fault(
    "memory",
    "poller stopped with what it remembers, while others write",
    "who wakes takes nothing for unchanged, and writes nothing that others cannot read",
    strike,
    SETTING,
    most=5,
    replaces=True,
    loses_writes=True,
)
