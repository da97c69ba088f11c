"""Laws of :mod:`poller.daemon.health`: how late the event loop is, and what the supervisor is told."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from poller.app import run
from poller.clock import Clock
from poller.daemon.health import (
    ASLEEP,
    LONGEST_STATUS,
    Readiness,
    ReadinessProblem,
    ReadinessReport,
    StoreMonitor,
    SupervisorNotifier,
    counted,
    measured,
    status,
    supervised,
)
from tests.harness.clock import StubClock
from tests.harness.waiting import patience, turns
from tests.servers import running
from tests.test_app import settings


async def test_a_loop_that_was_kept_busy_is_late_by_so_long() -> None:
    """The event loop's delay is measured until the block ends, and a delay longer than ``ASLEEP`` counts as sleep."""
    seen: list[float] = []
    slept: list[int] = []
    looked = asyncio.Event()
    times = iter([0.0, 0.001, 0.001, 0.402, 0.402, 0.413 + ASLEEP])

    def observe(late: float) -> None:
        seen.append(late)
        looked.set()

    with measured(
        observe,
        overslept=lambda: slept.append(len(seen)),
        every=0.001,
        clock=StubClock(monotonic=lambda: next(times, 2.0)),
    ):
        async with patience("three looks"):
            while len(seen) < 3:
                looked.clear()
                await looked.wait()
    assert [round(late, 3) for late in seen[:3]] == [0.0, 0.4, 0.01 + ASLEEP]
    assert slept == [3]
    count = len(seen)
    await turns()
    assert len(seen) == count


# What the supervisor receives, on a real datagram socket of either kind.


class Ear:
    """The supervisor's end of the socket and the datagrams that it received."""

    def __init__(self, listener: socket.socket) -> None:
        self.heard: list[str] = []
        self._listener = listener

    def hear(self) -> list[str]:
        """All datagrams received so far."""
        while True:
            try:
                self.heard.append(self._listener.recv(4096).decode())
            except BlockingIOError:
                return self.heard

    async def next(self) -> str:
        """Wait for the next datagram."""
        async with patience("a datagram to the supervisor"):
            self.heard.append((await asyncio.get_running_loop().sock_recv(self._listener, 4096)).decode())
        return self.heard[-1]


@contextmanager
def listening(address: str) -> Iterator[Ear]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as listener:
        listener.bind("\0" + address[1:] if address.startswith("@") else address)
        yield Ear(listener)


def readiness(*, away: str = "", started: bool = True) -> Readiness:
    watch = StoreMonitor("warn", clock=StubClock(monotonic=lambda: 0.0))
    made = Readiness(watch)
    if started:
        made.started()
    if away:
        watch.failed("a feed", away)
    else:
        watch.reasons = list  # type: ignore[method-assign] # a healthy store
    return made


class Steps:
    """Pauses that last until the test calls ``next``, and the seconds each would have lasted."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._on = asyncio.Event()

    async def pause(self, event: asyncio.Event, seconds: float) -> None:
        self.seconds.append(seconds)
        waiting = [asyncio.create_task(one.wait()) for one in (event, self._on)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for one in waiting:
            one.cancel()
        self._on.clear()

    def next(self) -> None:
        self._on.set()


@asynccontextmanager
async def told(environ: dict[str, str], one: Readiness) -> AsyncIterator[tuple[Steps, asyncio.Event, asyncio.Event]]:
    steps, stop, over = Steps(), asyncio.Event(), asyncio.Event()
    supervisor = SupervisorNotifier(environ)
    doing = asyncio.create_task(
        supervised(supervisor, one, lambda: "2 feeds", stop=stop, over=over, clock=StubClock(wait=steps.pause))
    )
    await turns(3)
    try:
        yield steps, stop, over
    finally:
        stop.set()
        over.set()
        async with patience("the notifier to end"):
            await doing


@pytest.mark.parametrize("kind", ["path", "abstract"])
async def test_from_ready_to_over(kind: str, tmp_path: Path) -> None:
    """The supervisor is told READY once, WATCHDOG twice per interval until the work is over, and STOPPING once."""
    address = str(tmp_path / "notify") if kind == "path" else f"@{tmp_path}"
    with listening(address) as ear:
        environ = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}
        async with told(environ, readiness()) as (steps, stop, over):
            assert ear.hear() == ["STATUS=2 feeds; all is well\nREADY=1"]
            steps.next()
            await turns(6)
            assert ear.hear()[1:] == ["WATCHDOG=1"]
            stop.set()
            await turns(6)
            assert ear.hear()[2:] == ["WATCHDOG=1", "STOPPING=1"]
            steps.next()
            await turns(6)
            assert ear.hear()[4:] == ["WATCHDOG=1"]
            over.set()
            steps.next()
            await turns(6)
            assert ear.hear()[5:] == []
        assert steps.seconds == [1.5] * len(steps.seconds)


async def test_not_before_it_is_ready(tmp_path: Path) -> None:
    """Before it is ready, a process sends its status with the reason, but neither READY nor WATCHDOG."""
    with listening(str(tmp_path / "notify")) as ear:
        environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "3000000"}
        async with told(environ, readiness(away="no such host")) as (steps, _, _):
            steps.next()
            await turns(6)
            assert ear.hear() == ["STATUS=2 feeds; store: no such host"]
            assert max(steps.seconds) < 1.5


async def test_when_its_work_begins(tmp_path: Path) -> None:
    """READY is sent when the work begins, without a wait for the next look; later looks are as far apart as ever."""
    one = readiness(started=False)
    with listening(str(tmp_path / "notify")) as ear:
        async with told({"NOTIFY_SOCKET": str(tmp_path / "notify")}, one) as (steps, _, _):
            one.started()
            await turns(6)
            assert ear.hear()[1:] == ["STATUS=2 feeds; all is well\nREADY=1"]
            await turns(6)
            assert len(steps.seconds) == 2


async def test_stopped_before_its_work_begins(tmp_path: Path) -> None:
    """STOPPING is sent once, also by a process that is stopped while it waits for the store and has ended since."""
    with listening(str(tmp_path / "notify")) as ear:
        async with told({"NOTIFY_SOCKET": str(tmp_path / "notify")}, readiness(started=False)) as (steps, stop, over):
            stop.set()
            over.set()
            steps.next()
            await turns(6)
            assert ear.hear()[1:] == ["STOPPING=1"]


async def test_a_store_that_goes_is_told_and_no_silence(tmp_path: Path) -> None:
    """After READY, an unavailable store changes only the status; WATCHDOG is still sent."""
    one = readiness()
    with listening(str(tmp_path / "notify")) as ear:
        environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "3000000"}
        async with told(environ, one) as (steps, _, _):
            one._watch.reasons = lambda: [ReadinessProblem("store", "away")]  # type: ignore[method-assign] # the store is away
            steps.next()
            await turns(6)
            assert ear.hear()[1:] == ["WATCHDOG=1", "STATUS=2 feeds; store: away"]
            steps.next()
            await turns(6)
            assert ear.hear()[3:] == ["WATCHDOG=1"]
            one._watch.reasons = list  # type: ignore[method-assign] # the store is back, which is no second start
            steps.next()
            await turns(6)
            assert ear.hear()[4:] == ["WATCHDOG=1", "STATUS=2 feeds; all is well"]


@pytest.mark.parametrize(
    "environ",
    [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1234"}, {"WATCHDOG_USEC": "1000"}],
    ids=["nothing", "empty", "unknown", "watchdog alone"],
)
async def test_nobody_asks(environ: dict[str, str]) -> None:
    """Without a usable NOTIFY_SOCKET the notifier does nothing and does not wait."""
    async with told(environ, readiness()) as (steps, _, _):
        assert steps.seconds == []


async def test_nobody_listens_any_more(tmp_path: Path) -> None:
    """A supervisor that is gone or does not read its socket causes no error."""
    address = str(tmp_path / "notify")
    supervisor = SupervisorNotifier({"NOTIFY_SOCKET": address})
    supervisor.notify("READY=1")
    with listening(address) as ear:
        for _ in range(2000):
            supervisor.notify("WATCHDOG=1")  # more than any queue holds: a blocking send would hang
        assert ear.hear()


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({"WATCHDOG_USEC": "3000000"}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "7"}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_whose_watchdog(environ: dict[str, str], seconds: float | None) -> None:
    """The watchdog applies unless WATCHDOG_PID names another process; an invalid interval means no watchdog."""
    assert SupervisorNotifier(environ, pid=7).watchdog == seconds


def test_the_status_is_one_short_line() -> None:
    """The status names each problem on one line of limited length."""
    failing = {"acme/contractTypes": "503\nService Unavailable"}
    report = ReadinessReport(ready=False, reasons=(ReadinessProblem("store", "is away"),), failing=failing, store=())
    said = status(report, counted(1, "feed"))
    assert said == "1 feed; store: is away, acme/contractTypes fails: 503 Service Unavailable"
    told = ReadinessReport(ready=True, reasons=(), failing={}, store=(), subscriptions={"hook": "status 502"})
    assert status(told, "1 feed") == "1 feed; hook fails: status 502"
    long = ReadinessReport(ready=True, reasons=(), failing=dict.fromkeys(map(str, range(100)), "no answer"), store=())
    assert len(status(long, "100 feeds")) == LONGEST_STATUS


async def test_the_daemon(tmp_path: Path) -> None:
    """A daemon sends its status, READY once its store is available, and STOPPING when it stops."""
    stop = asyncio.Event()
    environ: dict[str, Any] = {"TOKEN": "sandbox", "NOTIFY_SOCKET": str(tmp_path / "notify")}
    with listening(environ["NOTIFY_SOCKET"]) as ear:
        wanted = settings(tmp_path, url="http://127.0.0.1:9", store=f'redis = {{ url = "unix://{tmp_path}/s/s" }}')
        daemon = asyncio.create_task(run(wanted, environ, stop=stop, clock=Clock()))
        assert (await ear.next()).startswith("STATUS=1 feed; store: ")
        with running("valkey", tmp_path / "s"):
            while "READY=1" not in await ear.next():
                pass
            assert not any("STOPPING" in one for one in ear.heard)
            assert ear.heard[-1].startswith("STATUS=1 feed, 0 subscriptions; ")
            stop.set()
            while "STOPPING=1" not in await ear.next():
                pass
            async with patience("the daemon to leave"):
                await daemon


def test_what_cannot_be_written_is_told_as_well_as_can_be(tmp_path: Path) -> None:
    """A status that is not valid text, such as a file name, is escaped and sent."""
    with listening(str(tmp_path / "notify")) as ear:
        SupervisorNotifier({"NOTIFY_SOCKET": str(tmp_path / "notify")}).notify("STATUS=cannot read /run/\udcff")
        assert ear.hear() == ["STATUS=cannot read /run/\\udcff"]
