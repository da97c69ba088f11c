"""Concurrent calls that want the same thing share one piece of work.

Law: while the work runs, whoever asks waits for it and gets its result, the error too. It is nobody's own: a caller
that is cancelled leaves the others undisturbed, and when the last one has left, the work is cancelled and ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from poller.stopping import ended

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Call it to have the work done, or to join in where it is being done already."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        """Take the work."""
        self._work = work
        self._task: asyncio.Task[T] | None = None
        self._waiting = 0

    async def __call__(self) -> T:
        """The work's result.

        Raises:
            Exception: whatever the work raises.
        """
        if self._task is None:
            self._task, self._waiting = asyncio.create_task(self._work()), 0
            self._task.add_done_callback(self._landed)
        task = self._task
        self._waiting += 1
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            await self._left(task)
            raise
        return task.result()

    async def _left(self, task: asyncio.Task[T]) -> None:
        if task is not self._task:
            return  # it has landed
        self._waiting -= 1
        if not self._waiting:
            self._task = None
            await ended(task)

    def _landed(self, task: asyncio.Task[T]) -> None:
        if task is self._task:
            self._task = None
        if not task.cancelled():
            task.exception()  # seen, even where all who asked were cancelled meanwhile
