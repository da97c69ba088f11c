"""What a daemon costs while nothing happens, and how soon it and ``poller status`` are there.

CPU is that of the process, as the system counts it. A start stands beside the bare import of the libraries that the
program is built on, in the same run. The ratio is that of the seconds; that of their CPU, which tells more on a machine
that is busy, stands beside.
"""

from __future__ import annotations

import asyncio
import compileall
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import poller
from tests.bench.figures import Figure
from tests.bench.many_sources import RESOURCES, many_sources, polled
from tests.bench.scale import HEAD, SOURCE, configured, cpu_of
from tests.bench.scene import short_directory
from tests.harness.processes import SANDBOX_TOKEN, daemon
from tests.harness.waiting import until
from tests.servers import Server, running

_SOURCES: Final = 1_000
_STARTS: Final = 9
_SPAN: Final = 30.0  # seconds
_SETTLED: Final = 10.0  # seconds after a start until most of what it asks for is over
_RARELY: Final = 3600
_LONG: Final = 60.0  # seconds
_READY: Final = b"READY=1"
_BARE: Final = (
    sys.executable,
    "-c",
    "import httpx, apscheduler.schedulers.asyncio, redis.asyncio, cloudevents.core.v1.event, structlog",
)


class Taken(NamedTuple):
    """Seconds, and those of CPU."""

    seconds: float
    cpu: float


async def idle(root: Path) -> AsyncIterator[Figure]:
    """All of it; takes four minutes."""
    with (
        running("valkey", short_directory(root, "a"), appendfsync="everysec") as server,
        many_sources(_SOURCES, records=10) as url,
    ):
        one = _of_one(short_directory(root, "one"), server, url, _RARELY)
        many = configured(short_directory(root, "many"), server, url, _SOURCES)
        for figure in await asyncio.to_thread(_starts, root, one, many):
            yield figure
        bare = await asyncio.to_thread(_bare_share, url, server)
        beside = f"one GET and one script each second, alone {bare:.2%} of a core"
        for interval, limit, wanted in ((_RARELY, "", ""), (1, beside, "0.5 %")):
            file = _of_one(short_directory(root, f"each{interval}"), server, url, interval)
            share, requests = await _at_rest(file, server, url)
            yield Figure(
                f"one feed, polled every {interval} s",
                f"{share:.2%} of a core, {requests:.1f} requests a second to the store",
                limit,
                share / bare if limit else None,
                wanted,
            )


def _of_one(root: Path, server: Server, url: str, interval: int) -> Path:
    token = root / "token"
    token.write_text(SANDBOX_TOKEN)
    token.chmod(0o600)
    feed = f'[[sources.feeds]]\nresource = "{RESOURCES[0]}"\ninterval = {interval}\n'
    file = root / "poller.toml"
    file.write_text(HEAD.format(store=server.url) + SOURCE.format(number=0, url=url, token=token) + feed)
    return file


def _starts(root: Path, one: Path, many: Path) -> list[Figure]:
    """Each start in turn with the bare import, several times. All of it is compiled, as it is after an installation."""
    compileall.compile_dir(Path(poller.__file__).parent, quiet=1)
    bare, ready, status = [], [], []
    for number in range(_STARTS):
        bare.append(_ended(_BARE))
        ready.append(_until_ready(one, root / f"n{number}"))
        status.append(_ended((sys.executable, "-m", "poller", "status", "--config", str(one))))
    crowd = [_until_ready(many, root / f"m{number}") for number in range(_STARTS // 2)]
    limit = _middle(bare)
    return [
        _figure("poller run with one feed is ready", _middle(ready), limit, "<= 1.5"),
        _figure("poller status", _middle(status), limit, "0.8 s"),
        _figure(f"poller run with {_SOURCES * len(RESOURCES)} feeds is ready", _middle(crowd), limit, "5 s"),
    ]


def _figure(name: str, taken: Taken, limit: Taken, wanted: str) -> Figure:
    bare = (
        f"bare import of its libraries {limit.seconds:.2f} s; by CPU {taken.cpu / limit.cpu:.2f} of {limit.cpu:.2f} s"
    )
    return Figure(name, f"{taken.seconds:.2f} s", bare, taken.seconds / limit.seconds, wanted)


def _middle(taken: list[Taken]) -> Taken:
    return Taken(median(one.seconds for one in taken), median(one.cpu for one in taken))


def _ended(command: tuple[str, ...]) -> Taken:
    begun = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, _, used = os.wait4(process.pid, 0)
    process.returncode = 0
    return Taken(time.perf_counter() - begun, used.ru_utime + used.ru_stime)


def _until_ready(file: Path, place: Path) -> Taken:
    """A start until the supervisor is told that the daemon is ready."""
    command = (sys.executable, "-m", "poller", "run", "--config", str(file), "--log-level", "error")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(place))
        supervisor.settimeout(_LONG)
        begun = time.perf_counter()
        process = subprocess.Popen(command, env=os.environ | {"NOTIFY_SOCKET": str(place)})
        try:
            while _READY not in supervisor.recv(65536).split():
                pass
            return Taken(time.perf_counter() - begun, cpu_of(process.pid))
        finally:
            process.terminate()
            process.wait()


def _bare_share(url: str, server: Server) -> float:
    """The share of a core of a process that asks the API and the store each second, and does nothing else.

    On a virtual machine whose host takes memory from what seems idle, this is several times what the same calls cost
    one after the other, and so is the daemon's share.
    """
    command = (sys.executable, "-m", "tests.bench.pulse", f"{url}/s0", server.url)
    process = subprocess.Popen(command)
    try:
        _runs(process, _SETTLED)  # what the start costs is over
        cpu, begun = cpu_of(process.pid), time.monotonic()
        _runs(process, _SPAN)
        return (cpu_of(process.pid) - cpu) / (time.monotonic() - begun)
    finally:
        process.terminate()
        process.wait()


def _runs(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Let a process run for this time.

    Raises:
        RuntimeError: it has ended.
    """
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        return
    raise RuntimeError(f"{process.args!r} has ended with code {code}")


async def _at_rest(file: Path, server: Server, url: str) -> tuple[float, float]:
    """The share of a core that a daemon takes, and how many requests a second it sends to the store."""
    async with daemon(file, level="warning", importing=True) as one:
        polled(url)
        seen: Callable[[], bool] = lambda: any(polled(url).values())  # noqa: E731 -- one expression
        await until(seen, "the first round", seconds=_LONG, every=0.2)
        await asyncio.sleep(_SETTLED)  # what the start costs is over
        asked, cpu, begun = _asked_of(server), cpu_of(one.pid), time.monotonic()
        await asyncio.sleep(_SPAN)  # what is measured
        seconds = time.monotonic() - begun
        return (cpu_of(one.pid) - cpu) / seconds, (_asked_of(server) - asked) / seconds


def _asked_of(server: Server) -> float:
    from redis import Redis  # noqa: PLC0415 -- the blocking client, for this alone

    with Redis.from_url(server.url) as client:
        calls = client.info("commandstats")
    sent = ("evalsha", "eval", "xread", "xreadgroup")
    return float(sum(calls.get(f"cmdstat_{name}", {}).get("calls", 0) for name in sent))
