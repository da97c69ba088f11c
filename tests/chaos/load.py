"""The load: changes of the source at a fixed rate until stopped.

The sandbox itself creates and changes records; sometimes one is removed, so that removals have to be found during the
faults. The load talks to the sandbox only, so faults of the program cannot stop it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from poller.lifecycle import ended
from tests.harness.waiting import unless

if TYPE_CHECKING:
    from random import Random

    from tests.harness.scene import Scene

_TICK = 0.05
_REMOVED_OF = 40
"""One of this many ticks ends with a removal."""


class Load:
    """Changes a source between :meth:`start` and :meth:`stop`; both may be repeated."""

    def __init__(self, scene: Scene, rng: Random, *, per_second: float, removals: bool) -> None:
        self._scene = scene
        self._rng = rng
        self._each = per_second * _TICK
        self._owed = 0.0
        self._removals = removals
        self._live: dict[str, str] = {}
        self._seen = 0
        self._stopping = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._stopping.clear()
        self._running = asyncio.create_task(self._change())

    async def stop(self) -> None:
        """Stop, and return when no more changes come."""
        self._stopping.set()
        if self._running is not None:
            await self._running

    async def close(self) -> None:
        if self._running is not None:
            await ended(self._running)

    async def _change(self) -> None:
        while not await unless(self._stopping, _TICK):
            self._owed += self._each
            if self._owed >= 1:
                await self._scene.change(int(self._owed))
                self._owed %= 1
            if self._removals and not self._rng.randrange(_REMOVED_OF):
                await self._remove()

    async def _remove(self) -> None:
        for line in await self._scene.log(since=self._seen):
            self._seen = int(line["version"])
            if line["record"] is None:
                self._live.pop(line["id"], None)
            else:
                self._live[line["id"]] = line["resource"]
        record = self._rng.choice(sorted(self._live))
        await self._scene.remove(self._live.pop(record), record)
