"""What the system tells libraries while a simulation runs: time, chance, process id, host name, addresses.

The program asks its :class:`~poller.clock.Clock`. Libraries read the system's clocks themselves, so names in *their*
modules are replaced, and the few functions of the standard library that tell one process from another. The program's
own modules are left alone.

**Invariants**

- Code of a host sees the clock of this host; code of no host sees the true time of the simulation.
- Everything is as before when the block ends.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import socket
import sys
import threading
import time as real_time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.host import HOST

if TYPE_CHECKING:
    from tests.simulation.loop import SimulatedLoop

# redis-py is left out: it reads clocks only to measure itself, several times a command.
LIBRARIES: Final = (
    "aiohttp",
    "aiohappyeyeballs",
    "aiolimiter",
    "anyio",
    "apscheduler",
    "cloudevents",
    "h11",
    "httpx",
    "httpx_aiohttp",
    "nats",
    "prometheus_client",
    "starlette",
    "structlog",
    "tzlocal",
    "uvicorn",
)


class _DatetimeType(type):
    """Real moments are instances of the replacement, too."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, datetime)


def _host_datetime(now: Callable[[], datetime]) -> type:
    """A stand-in for the class ``datetime``; all that it makes are real ones."""

    class HostDatetime(metaclass=_DatetimeType):
        def __new__(cls, *given: Any, **more: Any) -> Any:
            return datetime(*given, **more)  # noqa: DTZ001 -- as its caller wants it

        @staticmethod
        def now(tz: tzinfo | None = None) -> datetime:
            moment = now()
            return moment.astimezone(tz) if tz is not None else moment.replace(tzinfo=None)

        @staticmethod
        def utcnow() -> datetime:
            return now().replace(tzinfo=None)

    for name in (
        "combine",
        "fromisoformat",
        "fromtimestamp",
        "strptime",
        "utcfromtimestamp",
        "fromordinal",
        "min",
        "max",
    ):
        setattr(HostDatetime, name, getattr(datetime, name))
    return HostDatetime


class _Standing(ModuleType):
    """A module of the standard library with some names replaced."""

    def __init__(self, of: ModuleType, **names: Any) -> None:
        super().__init__(of.__name__)
        self._of = of
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


@contextmanager
def system_of_hosts(loop: SimulatedLoop, *, but: tuple[str, ...] = ()) -> Iterator[None]:
    """Give libraries the clocks of the hosts while the block runs.

    Args:
        loop: has the hosts.
        but: libraries that are left alone.
    """
    wanted = frozenset(LIBRARIES) - frozenset(but)
    clocks = _clocks(loop)
    drawn = random.Random(loop.random.getrandbits(64))
    state = random.getstate()
    undo: list[tuple[Any, str, Any]] = []

    def replace(module: Any, name: str, by: Any) -> None:
        undo.append((module, name, getattr(module, name)))
        setattr(module, name, by)

    try:
        for module in [one for name, one in sys.modules.items() if name.partition(".")[0] in wanted]:
            for name, value in list(vars(module).items()):
                if id(value) in clocks:
                    replace(module, name, clocks[id(value)])
        replace(os, "urandom", drawn.randbytes)
        replace(random, "_urandom", drawn.randbytes)
        replace(os, "getpid", _of_host(os.getpid, lambda host: host.pid))
        for name in ("gethostname", "getfqdn"):
            replace(socket, name, _of_host(getattr(socket, name), lambda host: host.name))
        replace(socket, "socket", _host_socket(loop))
        replace(socket, "getaddrinfo", _looked_up(loop, socket.getaddrinfo))
        replace(threading.Thread, "start", _as_handle(loop, threading.Thread.start))
        random.seed(drawn.getrandbits(64))
        yield
    finally:
        for module, name, value in reversed(undo):
            setattr(module, name, value)
        random.setstate(state)


def _clocks(loop: SimulatedLoop) -> dict[int, Any]:
    """What stands in for the modules, classes and functions of the standard library that tell the time, by their id."""

    def now() -> datetime:
        host = HOST.get()
        return host.clock.now() if host else loop.true_time()

    def monotonic() -> float:
        host = HOST.get()
        return host.clock.monotonic() if host else loop.time()

    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    moments = _host_datetime(now)
    clocks = {
        "time": lambda: (now() - epoch) / timedelta(seconds=1),
        "time_ns": lambda: (now() - epoch) // timedelta(microseconds=1) * 1000,
        "monotonic": monotonic,
        "monotonic_ns": lambda: int(monotonic() * 1e9),
        "perf_counter": monotonic,
        "perf_counter_ns": lambda: int(monotonic() * 1e9),
    }
    return {
        id(real_time): _Standing(real_time, **clocks),
        id(dt): _Standing(dt, datetime=moments),
        id(datetime): moments,
        **{id(getattr(real_time, name)): function for name, function in clocks.items()},
    }


def _host_socket(loop: SimulatedLoop) -> type[socket.socket]:
    """Sockets that the program makes itself: one that is bound by a host listens on the simulated network."""

    class HostSocket(socket.socket):
        _bound: Any = None

        def bind(self, address: Any, /) -> None:
            if HOST.get() is None:
                super().bind(address)
            else:
                self._bound = loop.network.free(*address[:2])

        def listen(self, *given: int) -> None:
            if self._bound is None:
                super().listen(*given)

        def getsockname(self) -> Any:
            return super().getsockname() if self._bound is None else self._bound

    return HostSocket


def _looked_up(loop: SimulatedLoop, real: Callable[..., Any]) -> Callable[..., Any]:
    def getaddrinfo(host: Any, port: Any, *given: Any, **more: Any) -> Any:
        if HOST.get() is None:
            return real(host, port, *given, **more)
        return loop.network.getaddrinfo(host, port)

    return getaddrinfo


def _as_handle(loop: SimulatedLoop, real: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    """A thread of a host runs whole, a little later."""

    def start(thread: threading.Thread) -> None:
        if HOST.get() is None:
            real(thread)
        else:
            loop.run_in_executor(None, thread.run)

    return start


def _of_host(real: Callable[..., Any], own: Callable[[Any], Any]) -> Callable[..., Any]:
    def asked(*given: Any) -> Any:
        host = HOST.get()
        return own(host) if host is not None and not given else real(*given)

    return asked
