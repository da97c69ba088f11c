"""Processes of an earlier version are replaced by those of this one, and come back with a copy of the store."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from poller.store.feed_state import FORMS
from tests.chaos.checkouts import FORMER, missing
from tests.chaos.fault import Fault
from tests.chaos.remembered import SETTING, Quiet, exchange
from tests.harness.waiting import until

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from tests.chaos.stage import Stage
    from tests.harness.processes import Daemon

_REFUSAL = "holds what this version cannot read"


async def strike(stage: Stage, rng: Random) -> None:
    """One process after the other is upgraded, sometimes in two attempts; in the end all are stopped.

    Then the earlier version starts on a copy of the store.
    """
    former = stage.replicas.checkout
    quiet = await Quiet.begin(stage)
    forms = await _forms(stage)
    log, copy = stage.store.directory / "appendonlydir", stage.directory / "copy"
    await asyncio.to_thread(shutil.copytree, log, copy)
    first, second = stage.replicas.running
    upgraded = await _exchanged(stage, quiet, rng, first, None)
    if rng.randrange(3):  # while one has the earlier version, that can read all
        upgraded = await _exchanged(stage, quiet, rng, upgraded, former)
        upgraded = await _exchanged(stage, quiet, rng, upgraded, None)
    await _exchanged(stage, quiet, rng, second, None)
    await _all_later(stage, forms)
    if rng.randrange(2):
        await _refused(stage, former)
    await quiet.change(rng)
    await quiet.published()
    if rng.randrange(2):
        stage.load.start()
        await stage.rest(rng.random())
        await stage.load.stop()
    for one in list(stage.replicas.running):
        await stage.end(one, rng)
    stage.store.kill()
    await asyncio.to_thread(exchange, log, copy)
    await stage.store.start()
    stage.replicas.checkout = former
    for one in list(stage.replicas.running):
        await stage.replicas.replace(one)
    await quiet.end()


async def _exchanged(stage: Stage, quiet: Quiet, rng: Random, one: Daemon, to: Path | None) -> Daemon:
    """Replace a process by one of this version; all is read and written with it."""
    await stage.end(one, rng)
    stage.replicas.checkout = to
    new = await stage.replicas.replace(one)
    await new.started()
    await quiet.change(rng)
    await quiet.rest()
    await quiet.back()
    await (quiet.rest() if rng.randrange(2) else quiet.published())
    return new


async def _forms(stage: Stage) -> list[bytes | None]:
    """The forms of each feed's snapshots."""
    client = stage.scene.played.client
    states = [f"poller:{{acme/{feed}}}:state" for feed in stage.scene.feeds]
    return [cast("bytes | None", await client.hget(state, cast("Any", FORMS))) for state in states]


async def _all_later(stage: Stage, before: list[bytes | None]) -> None:
    """Return when each feed has a later form, which is some time after the last earlier process was killed."""

    async def later() -> bool:
        return all(now != then for now, then in zip(await _forms(stage), before, strict=True))

    await until(later, "a later form in each feed")


async def _refused(stage: Stage, former: Path | None) -> None:
    """A process of the earlier version comes back too early: it refuses what it cannot read, and is killed."""
    stage.replicas.checkout = former
    early = await stage.replicas.add()
    stage.replicas.checkout = None
    await early.until(lambda line: _REFUSAL in (line.get("error") or ""), "its refusal")
    await early.kill()
    await stage.killed()
    stage.replicas.running.remove(early)


FAULT = Fault(
    "versions",
    "an earlier version, both, this one; then the earlier one on a copy of Redis",
    "each reads what the others wrote, or refuses it; nothing is published for the upgrade",
    strike,
    replace(SETTING, former=FORMER),
    most=3,
    replaces=True,
    loses_writes=True,
    missing=missing,
)
