"""An event loop with virtual time, on which several hosts run in one process.

Theory of operation
-------------------
Whatever the program does goes through its event loop: timers, connections, threads. So the loop is what is replaced,
and the program runs on it unchanged. Handles run in the order in which they became ready. When none is ready, time
jumps to the next timer. Threads are part of the loop: a function for an executor runs by itself, a little later.

The handles of a frozen host are kept until it goes on, as of a process that was stopped.

**Invariants**

- Nothing but the random source, the start and the program decides what happens: no order follows from an address in
  memory, a hash of text or the system's clock.
- Time moves only if no handle is ready, or after many turns at one instant: who looks again and again without waiting
  takes time, too.
- A host's timer counts whole milliseconds, as uvloop's do, and so runs up to 1.5 ms early. The world's timers and those
  of the network are exact.
- If nothing is ready and no timer is due, the run ends with :class:`Stuck`, which lists the tasks that wait.
- Garbage is collected between turns only, after a number of handles: a finalizer runs at the same moment in each run.
"""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor
from contextvars import Context, copy_context
from datetime import datetime, timedelta
from heapq import heapify, heappop, heappush
from random import Random
from typing import Any, Final, TypeVar, TypeVarTuple

from tests.simulation.clock import SimulatedClock
from tests.simulation.host import HOST, Host, HostState
from tests.simulation.network import Network

__all__ = ["HOST", "Handle", "Host", "HostState", "SimulatedLoop", "Stuck", "Task", "name_of", "whereabouts"]

Ts = TypeVarTuple("Ts")
T = TypeVar("T")

_SPINNING: Final = 10_000  # turns
_COLLECTED: Final = 200_000  # handles
_LEAST: Final = 1e-6  # seconds that pass before a timer runs: aiolimiter waits until now, for ever, if none do
_TICKS: Final = 1000  # a second, as a host's timers count
_ROUNDING: Final = 1e-6  # ticks that a sum of floating numbers may lack
_MANY_CANCELLED: Final = 500
_WORK: Final = 0.002  # seconds that a function in a thread takes at most


class Stuck(Exception):
    """Nothing will ever happen again."""


class Handle(asyncio.TimerHandle):
    """A callback that will run.

    Attributes:
        rank: 0: was ready at once; 1: something arrived; 2: a timer.
    """

    __slots__ = ("rank",)
    _context: Context
    _callback: Callable[..., object]
    _when: float
    _scheduled: bool

    def __init__(
        self, callback: Callable[..., object], given: tuple[Any, ...], loop: SimulatedLoop, context: Context | None
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = given
        self._cancelled = False
        self._scheduled = False
        self.rank = 0

    def __repr__(self) -> str:
        return f"<Handle {name_of(self)}{' cancelled' if self._cancelled else ''}>"

    def cancel(self) -> None:
        """Let it not run; as in asyncio, what it would call is let go."""
        if not self._cancelled:
            self._cancelled = True
            if self._scheduled:
                self._loop._timer_handle_cancelled(self)
            self._callback = self._args = None  # type: ignore[assignment] # nobody calls a cancelled one


class Task(asyncio.Task[Any]):
    """A task with a number: a set of tasks has the same order in each run."""

    def __init__(self, work: Any, number: int, *, host: Host | None, **more: Any) -> None:
        self.number = number
        self.host = host
        super().__init__(work, **more)

    def __hash__(self) -> int:
        return self.number


class SimulatedLoop(asyncio.BaseEventLoop):
    """The loop.

    Attributes:
        random: decides everything.
        start: the true time at which :meth:`time` is zero.
        network: what connects the hosts.
        hosts: by name; a name's last one.
        note: is called with a host's name ("-": none) and what happened to it, in a few words; None: nothing is.
        trace: is called with each handle before it runs; None: nothing is.
        failures: what a callback or a task that nobody awaited has raised, as asyncio would log it.
    """

    def __init__(self, random: Random, start: datetime) -> None:
        super().__init__()
        self.set_debug(enabled=False)
        self.random = random
        self.start = start
        self.hosts: dict[str, Host] = {}
        self.note: Callable[[str, str], None] | None = None
        self.trace: Callable[[Handle], None] | None = None
        self.failures: list[str] = []
        self.handles = 0
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._cancelled_timers = 0
        self._now = 0.0
        self._turns = 0
        self._collected = 0
        self._numbered = 0
        self._named = 0
        self._pid = 100
        self._closed = False
        self._frozen: set[Host] = set()
        self.network = Network(self)

    # Hosts.

    def host(self, name: str, address: str, *, skew: timedelta = timedelta(0), drift: float = 0.0) -> Host:
        """Switch a machine on, with one process. A dead one of this name is replaced.

        Args:
            name: of the machine.
            address: of the machine.
            skew: of its wall clock.
            drift: of both clocks: seconds gained in a second.
        """
        before = self.hosts.get(name)
        if before is not None and before.state is not HostState.DEAD:
            raise ValueError(f"{name} is {before.state.value}")
        self._pid += 1
        clock = SimulatedClock(self, Random(self.random.getrandbits(64)), skew=skew, drift=drift)
        host = Host(self, name, address, clock, pid=self._pid)
        self.hosts[name] = host
        self.network.add(host)
        return host

    def tasks_of(self, host: Host | None) -> list[Task]:
        """The tasks of a host that have not ended, in the order in which they began."""
        tasks = [task for task in asyncio.all_tasks(self) if isinstance(task, Task) and task.host is host]
        return sorted(tasks, key=lambda task: task.number)

    def drop(self, host: Host) -> None:
        """Drop all handles of a host."""
        self._ready = deque(one for one in self._ready if one._cancelled or one._context.get(HOST) is not host)
        self._timers[:] = [
            one for one in self._timers if not one[2]._cancelled and one[2]._context.get(HOST) is not host
        ]
        heapify(self._timers)
        self._cancelled_timers = 0

    def report(self, host: Host | None, text: str) -> None:
        """Pass on what happened to a host."""
        if self.note is not None:
            self.note(host.name if host else "-", text)

    # Time.

    def time(self) -> float:
        """Seconds since the start."""
        return self._now

    def true_time(self) -> datetime:
        """What a clock without fault shows, UTC."""
        return self.start + timedelta(seconds=self._now)

    # Handles.

    def call_soon(self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> Handle:
        """Call it in the next turn."""
        if self._closed:
            raise RuntimeError("Event loop is closed")
        handle = Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def arrival(self, callback: Callable[..., object], *args: Any, context: Context) -> Handle:
        """A handle for what has arrived, to be kept by its host or given to :meth:`ready`."""
        handle = Handle(callback, args, self, context)
        handle.rank = 1
        return handle

    def ready(self, handle: Handle) -> None:
        """Run a handle in the next turn."""
        self._ready.append(handle)

    call_soon_threadsafe = call_soon  # there are no threads

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> Handle:
        """Call it after so many seconds."""
        host = HOST.get() if context is None else context.get(HOST)
        when = self._now + delay
        if host is not None and (ticks := round(delay * _TICKS)):
            when = (int(self._now * _TICKS + _ROUNDING) + ticks) / _TICKS
        return self._timer(when, callback, args, context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> Handle:
        """Call it at that time of :meth:`time`."""
        return self.call_later(when - self._now, callback, *args, context=context)

    def _timer(
        self, when: float, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> Handle:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        handle = Handle(callback, args, self, context)
        handle._when = when
        handle._scheduled = True
        handle.rank = 2
        self._numbered += 1
        heappush(self._timers, (when, self._numbered, handle))
        return handle

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
        **more: Any,
    ) -> asyncio.Task[T]:
        """Start a task, numbered and named in order."""
        if self._closed:
            raise RuntimeError("Event loop is closed")
        self._named += 1
        host = HOST.get() if context is None else context.get(HOST)
        return Task(
            coro, self._named, host=host, loop=self, name=name or f"Task-{self._named}", context=context, **more
        )

    def _timer_handle_cancelled(self, _handle: asyncio.TimerHandle) -> None:
        self._cancelled_timers += 1
        if self._cancelled_timers > _MANY_CANCELLED and self._cancelled_timers * 2 > len(self._timers):
            self._timers[:] = [one for one in self._timers if not one[2]._cancelled]
            heapify(self._timers)
            self._cancelled_timers = 0

    def _run_once(self) -> None:
        """Run what is ready now; if nothing is, let time pass until the next timer."""
        if not self._ready or self._turns >= _SPINNING:
            self._turns = 0
            self._pass_time()
        self._turns += 1
        ready, frozen, trace = self._ready, self._frozen, self.trace
        turn = len(ready)
        self.handles += turn
        for _ in range(turn):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            context = handle._context
            if frozen and (host := context.get(HOST)) in frozen and host is not None:
                host.keep(handle)
                continue
            if trace is not None:
                trace(handle)
            try:
                context.run(handle._callback, *handle._args)
            except (SystemExit, KeyboardInterrupt, Stuck):
                raise
            except BaseException as error:  # noqa: BLE001 -- as asyncio does, one callback is not all
                told = {"message": f"Exception in {name_of(handle)}", "exception": error}
                context.run(self.call_exception_handler, told)
            if ready is not self._ready:
                break  # a host was dropped
        if self.handles - self._collected >= _COLLECTED:
            self._collected = self.handles
            gc.collect()

    def _pass_time(self) -> None:
        timers, ready = self._timers, self._ready
        now = self._now
        while timers:
            when, _, handle = heappop(timers)
            handle._scheduled = False
            if handle._cancelled:
                self._cancelled_timers -= 1
                continue
            self._now = now = max(when, now + _LEAST)
            ready.append(handle)
            while timers and timers[0][0] <= now:
                handle = heappop(timers)[2]
                handle._scheduled = False
                ready.append(handle)
                if handle._cancelled:
                    self._cancelled_timers -= 1
            return
        if not ready:
            waiting = "\n".join(map(whereabouts, sorted(asyncio.all_tasks(self), key=hash)))
            raise Stuck(f"at {self._now:.3f} s nothing will happen any more; these wait:\n{waiting}")

    def run_until_complete(self, future: Any) -> Any:
        """Run until it is done, without the collector's own moments."""
        enabled = gc.isenabled()
        gc.disable()
        try:
            return super().run_until_complete(future)
        finally:
            if enabled:
                gc.enable()

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep what was raised."""
        host, error = HOST.get(), context.get("exception")
        told = f"{host.name if host else '-'}: {context.get('message')}: {error!r}"
        self.failures.append(told)
        self.report(host, told)

    # Threads.

    def run_in_executor(
        self,
        executor: Executor | None,  # noqa: ARG002 -- as there
        func: Callable[[*Ts], T],
        *args: *Ts,
    ) -> asyncio.Future[T]:
        """Call a function by itself, a little later."""
        future: asyncio.Future[T] = self.create_future()
        self._timer(self._now + self.random.random() * _WORK, _work, (future, func, args), None)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 -- as there
        """Do nothing: there are no threads."""

    def close(self) -> None:
        """End the loop; hosts and tasks that are left end without any effect."""
        if not self._closed and asyncio.all_tasks(self):
            self.run_until_complete(self._end())
        self._closed = True
        self._ready.clear()
        self._timers.clear()
        self.network.close()

    async def _end(self) -> None:
        for host in self.hosts.values():
            await host.kill(power=True)
        for task in self.tasks_of(None):
            if task is not asyncio.current_task():
                task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    # Connections: see tests.simulation.network.

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **more: Any) -> Any:
        """Connect to a host of the simulation, or take a socket that :meth:`sock_connect` has connected."""
        return await self.network.create_connection(protocol_factory, host, port, **more)

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **more: Any) -> Any:
        """Listen on the current host."""
        return self.network.create_server(protocol_factory, host, port, **more)

    async def sock_connect(self, sock: Any, address: Any) -> None:
        """Connect a socket, which goes to :meth:`create_connection` then."""
        await self.network.sock_connect(sock, address)

    async def getaddrinfo(self, host: Any, port: Any, **more: Any) -> Any:
        """The addresses of a name of a host."""
        return self.network.getaddrinfo(host, port, **more)

    async def getnameinfo(self, sockaddr: Any, flags: int = 0) -> Any:  # noqa: ARG002 -- as there
        """An address as text; there is no other name for it."""
        return str(sockaddr[0]), str(sockaddr[1])


def _work(future: asyncio.Future[Any], function: Callable[..., Any], given: tuple[Any, ...]) -> None:
    try:
        result = function(*given)
    except Exception as error:  # noqa: BLE001 -- belongs to the one who awaits the thread
        if not future.cancelled():
            future.set_exception(error)
    else:
        if not future.cancelled():
            future.set_result(result)


def name_of(handle: Handle) -> str:
    """What a handle calls: the name of a task, or of a function."""
    callback = handle._callback
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return owner.get_name()
    function = getattr(callback, "func", callback)
    return str(getattr(function, "__qualname__", type(function).__name__))


def whereabouts(task: asyncio.Task[Any]) -> str:
    """A task and the lines at which it waits."""
    lines: list[str] = []
    waiting: Any = task.get_coro()
    while waiting is not None:
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "gi_frame", None)
        if frame is not None:
            lines.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)
    host = task.host.name if isinstance(task, Task) and task.host else "-"
    return f"{host} {task.get_name()}: {' > '.join(lines)}"
