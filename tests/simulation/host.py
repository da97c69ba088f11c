"""A machine of the simulation, with one process: it runs, is frozen, or is dead.

**Invariants**

- Each handle of the loop belongs to the host whose code made it, by :data:`HOST` in its context.
- A dead host's connections are cut before its tasks are cancelled, so nothing that they still do reaches anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from tests.simulation.clock import SimulatedClock
    from tests.simulation.loop import Handle, SimulatedLoop

T = TypeVar("T")

HOST: Final[ContextVar[Host | None]] = ContextVar("host", default=None)
"""Whose code runs; None: the world's own."""

_DYING: Final = 50  # times that the tasks of a dead host are cancelled


class HostState(Enum):
    """Whether a host runs."""

    RUNNING = "running"
    FROZEN = "frozen"
    DEAD = "dead"


class Host:
    """A machine with one process.

    Attributes:
        name: of the machine.
        address: its only one.
        clock: its wall clock, monotonic clock and random numbers.
        state: whether it runs.
        has_power: whether the machine is on, and tells the other sides when its process has died.
        pid: of its process.
    """

    def __init__(self, loop: SimulatedLoop, name: str, address: str, clock: SimulatedClock, pid: int) -> None:
        self.name = name
        self.address = address
        self.clock = clock
        self.state = HostState.RUNNING
        self.has_power = True
        self.pid = pid
        self._loop = loop
        self._kept: list[Handle] = []

    def __repr__(self) -> str:
        return f"<Host {self.name} {self.state.value}>"

    def start(self, work: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
        """Start a task of this host."""
        context = copy_context()
        context.run(HOST.set, self)
        return self._loop.create_task(work, name=name, context=context)

    def run(self, function: Callable[..., T], *given: Any) -> T:
        """Call a function as code of this host."""
        context = copy_context()
        context.run(HOST.set, self)
        return context.run(function, *given)

    def freeze(self) -> None:
        """Stop the process (SIGSTOP). Its kernel goes on receiving, and connections to it are made."""
        if self.state is HostState.RUNNING:
            self.state = HostState.FROZEN
            self._loop._frozen.add(self)
            self._loop.report(self, "frozen")

    def thaw(self) -> None:
        """Let the process go on (SIGCONT): first with what was ready, then with what arrived, then with timers."""
        if self.state is HostState.FROZEN:
            self.state = HostState.RUNNING
            self._release()
            self._loop.report(self, "thawed")

    async def kill(self, *, power: bool = False) -> None:
        """End the process (SIGKILL): first its connections, then its tasks, whose last steps reach nothing.

        Args:
            power: whether the whole machine is off: nothing tells the other sides of its connections.
        """
        if self.state is HostState.DEAD:
            return
        self.state = HostState.DEAD
        self._loop.report(self, "powered off" if power else "killed")
        self.has_power = not power
        self._loop.network.host_died(self)
        self._release()
        for _ in range(_DYING):
            tasks = self._loop.tasks_of(self)
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            for _ in range(3):
                await asyncio.sleep(0)
        self._loop.drop(self)
        if tasks := self._loop.tasks_of(self):
            raise RuntimeError(f"tasks of {self.name} cannot be cancelled: {', '.join(map(str, tasks))}")

    def keep(self, handle: Handle) -> None:
        """Keep a handle until the host goes on."""
        self._kept.append(handle)

    def _release(self) -> None:
        self._loop._frozen.discard(self)
        kept, self._kept = self._kept, []
        self._loop._ready.extend(sorted(kept, key=lambda handle: handle.rank))
