"""The process that runs the embedded store is killed, and the store with it; another one must restart it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]  # has no types of its own

from tests.chaos.fault import Fault, Setting
from tests.chaos.stage import EMBEDDED
from tests.harness.waiting import patience

if TYPE_CHECKING:
    from random import Random

    from tests.chaos.stage import Stage


def _servers(stage: Stage) -> list[psutil.Process]:
    """The live servers on the data directory."""
    found = []
    for process in psutil.process_iter(["name", "cmdline", "status", "cwd"]):
        said = " ".join(process.info["cmdline"] or ()) + (process.info["cwd"] or "")
        if "valkey" in (process.info["name"] or "") and str(stage.directory / EMBEDDED) in said:
            found.append(process)
    return [one for one in found if one.info["status"] != psutil.STATUS_ZOMBIE]


async def strike(stage: Stage, rng: Random) -> None:
    """Mostly the parent is killed; a fifth of the time the server itself."""
    servers = _servers(stage)
    if len(servers) > 1:
        stage.remarks.append(f"{len(servers)} servers on one directory: {servers}")
    parents = {one.ppid() for one in servers}
    with stage.outage():
        killed = servers[:1] if servers and not rng.randrange(5) else []
        if killed:
            killed[0].kill()
        else:
            at = next((one for one in stage.replicas.running if one.pid in parents), None)
            victim = at or stage.replicas.choose(rng)
            await victim.kill()
            await stage.replicas.replace(victim)
        async with patience("a server to run again"):
            while not any(one not in killed for one in _servers(stage)):
                await stage.rest(0.05)


FAULT = Fault(
    "embedded",
    "embedded server's parent killed -9",
    "never two servers on one directory, nothing acknowledged lost",
    strike,
    Setting(store="embedded"),
    replaces=True,
)
