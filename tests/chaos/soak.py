"""Runs hours under load with regular kills of the store, and checks that memory and connections stay constant.

All sizes are constant: the number of records, whose text changes back and forth, and the length of the streams. So any
growth is a leak. A warning of the program is explained by a restart of the store up to :data:`EXPLAINED` seconds
earlier, or by the moods of the sinks; any other warning is a finding.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

from poller.lifecycle import ended
from tests.chaos.asking import answered
from tests.chaos.lasting import LastingStore
from tests.chaos.replicas import Replicas
from tests.chaos.stage import WISHES
from tests.chaos.staging import started_with
from tests.chaos.steady import Steady, Watched
from tests.harness.scene import RESOURCES, stream
from tests.harness.subscribed import subscribed
from tests.harness.waiting import unless

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.subscribed import Subscribed

_RECORDS = 400
_ENTRIES = 2000
_SAMPLE_SECONDS = 5.0
_CONFIG: dict[str, Any] = {"interval": "500ms", "ttl": "10s", "limit": "200", "reconcile": "60s", "sink_timeout": "10s"}
_COMMANDS: Final = (("poller", "run"), ("poller", "run"))


@dataclass(slots=True)
class _Soak:
    """A running soak."""

    scene: Subscribed
    store: LastingStore
    replicas: Replicas
    watched: Watched
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def change(self) -> None:
        """Change forty existing records a second, back and forth."""
        steady = Steady(await self.scene.played.log(), Random(1))
        while not await unless(self.over, 0.05):
            for resource, record in steady.changes(2):
                await self.scene.played.put(resource, record)

    async def restart(self, every: float) -> None:
        """Kill the store at intervals; it is down for a second each time."""
        while not await unless(self.over, every):
            self.watched.restarted()
            self.store.kill()
            await unless(self.over, 1.0)
            await self.store.start()

    async def sample(self) -> None:
        """Sample each process, and keep streams and logs short."""
        while not await unless(self.over, _SAMPLE_SECONDS):
            names = await answered(self._trimmed)
            for one in self.replicas.running:
                self.watched.sample(one, sum(client["name"].startswith("poller") for client in names))

    async def _trimmed(self) -> list[dict[str, str]]:
        """Trim the streams; the clients connected to the store."""
        client = self.scene.played.client
        for resource in RESOURCES:
            await client.xtrim(stream(resource), maxlen=_ENTRIES)
        return await client.client_list()


async def soaked(directory: Path, *, minutes: float, restart_every: float) -> bool:
    """Run this long and print the findings; whether everything held."""
    async with AsyncExitStack() as stack:
        store = LastingStore(directory / "v", appendfsync="everysec", options={"auto-aof-rewrite-min-size": "16mb"})
        stack.callback(store.close)
        await store.start()
        scene = await stack.enter_async_context(
            subscribed(
                directory,
                WISHES,
                store=store.url,
                records=_RECORDS,
                changes_per_second=0,
                feeds=RESOURCES,
                logged=False,
            )
        )
        replicas = Replicas(partial(started_with, scene.config(**_CONFIG)), _COMMANDS, {})
        stack.push_async_callback(replicas.close)
        await replicas.open()
        await replicas.at_work()
        watched = Watched(time.monotonic)
        soak = _Soak(scene, store, replicas, watched)
        tasks = [asyncio.create_task(one) for one in (soak.change(), soak.restart(60 * restart_every), soak.sample())]
        stack.push_async_callback(ended, *tasks)
        await _for(minutes, tasks, watched)
        soak.over.set()
        await asyncio.gather(*tasks)
        watched.strayed += replicas.strayed()
    sys.stdout.write(f"{watched}\n")
    return watched.held


async def _for(minutes: float, tasks: list[asyncio.Task[None]], watched: Watched) -> None:
    """Wait this long, or until one of the tasks fails; print the state every few minutes."""
    deadline = time.monotonic() + 60 * minutes
    while (left := deadline - time.monotonic()) > 0:
        done, _ = await asyncio.wait(tasks, timeout=min(left, 300.0), return_when=asyncio.FIRST_COMPLETED)
        if done:
            done.pop().result()
        sys.stderr.write(f"{watched}\n")
