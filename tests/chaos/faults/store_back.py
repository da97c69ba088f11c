"""The store, or what it holds of a reading alone, goes back to a copy from before; nothing changes around that."""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from typing import TYPE_CHECKING

from tests.chaos.asking import answered
from tests.chaos.fault import Fault
from tests.chaos.remembered import SETTING, Quiet, exchange
from tests.chaos.stage import TTL
from tests.harness.scene import RESOURCES

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from tests.chaos.stage import Stage

_OF_READINGS = ("page_digests", "listings")


async def strike(stage: Stage, rng: Random) -> None:
    """All of the store goes back, or the digests in it."""
    quiet = await Quiet.begin(stage)
    await rng.choice((_all, _digests))(stage, quiet, rng)
    await quiet.end()


async def _all(stage: Stage, quiet: Quiet, rng: Random) -> None:
    """Put a copy of the files back; what was published since comes again, unless the source has gone back as well."""
    log = stage.store.directory / "appendonlydir"
    await asyncio.to_thread(shutil.copytree, log, _copy(stage), dirs_exist_ok=True)
    await quiet.change(rng)
    await (quiet.rest() if rng.randrange(2) else quiet.published())
    stage.store.kill()
    if not rng.randrange(3):
        await quiet.back()
    await asyncio.to_thread(exchange, log, _copy(stage))
    await stage.store.start()


async def _digests(stage: Stage, quiet: Quiet, rng: Random) -> None:
    """Put digests of pages and listings back while all processes are suspended; the source shows the same again."""
    client = stage.scene.played.client
    names = [f"poller:{{acme/{feed}}}:{key}" for feed in RESOURCES for key in _OF_READINGS]
    found = [await client.dump(name) for name in names]
    await quiet.change(rng)
    await quiet.published()
    suspended = time.monotonic()
    for one in stage.replicas.running:
        one.send(signal.SIGSTOP)
    await stage.rest(TTL * 1.1)  # so that no round goes on that has begun before
    await quiet.back()
    for name, value in zip(names, found, strict=True):
        if value is not None:
            await answered(lambda name=name, value=value: client.restore(name, 0, value, replace=True))  # type: ignore[misc] # bound here
    for one in stage.replicas.running:
        one.send(signal.SIGCONT)
    stage.scene.suspensions.append((suspended, time.monotonic()))


def _copy(stage: Stage) -> Path:
    return stage.directory / "copy"


FAULT = Fault(
    "store-back",
    "Redis, or digests in it, as before, while nothing changes",
    "read again: nothing is taken for unchanged that is not stored",
    strike,
    SETTING,
    most=5,
    replaces=True,
    loses_writes=True,
)
