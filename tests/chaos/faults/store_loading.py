"""The store is killed and loads its data slowly, answering ``LOADING``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.chaos.asking import answered
from tests.chaos.fault import Fault, Setting

if TYPE_CHECKING:
    from random import Random

    from tests.chaos.stage import Stage

_MICROSECONDS = 1_500_000


async def strike(stage: Stage, rng: Random) -> None:
    client = stage.scene.played.client
    with stage.outage():
        stage.store.kill()
        commands = stage.store.log.read_bytes().count(b"\n*")
        await stage.store.start(key_load_delay=str(int(_MICROSECONDS * (0.2 + rng.random()) / commands)))
        await answered(lambda: client.config_set("key-load-delay", 0))


FAULT = Fault(
    "loading",
    "Redis restarted, `LOADING` for a second or two",
    "waited for, nothing doubled",
    strike,
    Setting(options={"loading-process-events-interval-bytes": "1024", "enable-debug-command": "yes"}),
    most=10,
    replaces=True,
)
