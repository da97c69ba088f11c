"""One event to many subscriptions: how soon, and how dear, beside a bare client that posts to as many URLs.

``python -m tests.bench.fanout STORE URL COUNT MODE`` is that client: it reads the stream and posts each event to each
URL with aiohttp's session, unsigned; it has no groups, acknowledges nothing and would lose what it reads in a crash. In
mode ``batch`` it gathers the events of :data:`LINGER` seconds, as the daemon does.

What others take from a virtual machine keeps all its processes waiting, and 1 % of ten seconds is 100 ms. So a run in
which they took more than :data:`_OTHERS` is repeated, and each figure says how much they took.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import product
from typing import Any, Final

import aiohttp
import msgspec
import psutil  # type: ignore[import-untyped]  # has no types of its own
import uvloop
from redis.asyncio import Redis

from poller.cli.run import COLLECT_AFTER
from tests.bench.delivering import STREAM, Place, Wanted, collected, delivering, groups, no_rewrites, publish
from tests.bench.figures import Figure
from tests.bench.receiver import Arrived, arrived

LINGER: Final = 10.0  # seconds: at ten events a second a batch has a hundred
REPEATS: Final = 3
_SPAN: Final = 10.0  # seconds
_WARM: Final = 2.0  # seconds, in which connections are made
_HALF: Final = 0.5  # of a core
_TRIES: Final = 2  # at the pace that takes it
_OTHERS: Final = 0.005  # of the processors' time
_MORE: Final = 2  # runs at most, in place of one in which others took more
_MS: Final = 1000


class FanOut(msgspec.Struct, frozen=True):
    """One event to many sinks, for some seconds.

    Attributes:
        p50: seconds within which half of the requests were answered, from the XADD of their last event.
        p99: the same of 99 %.
        cpu: share of one core of what delivers.
        store: the same of the store.
        receiver: the same of the receiver.
        load: the same of what publishes.
        each: CPU of what delivers for each event that a sink got, in microseconds.
        others: share of the processors that this machine did not get, because others of its host had them.
    """

    p50: float
    p99: float
    cpu: float
    store: float
    receiver: float
    load: float
    each: float
    others: float

    def __str__(self) -> str:
        return (
            f"p50 {self.p50 * _MS:.1f} ms, p99 {self.p99 * _MS:.1f} ms, {self.cpu:.0%} of a core, "
            f"{self.each:.0f} µs CPU each; store {self.store:.0%}, receiver {self.receiver:.0%}, load {self.load:.0%}, "
            f"other machines {self.others:.2%}"
        )


async def soon(at: Place, sinks: int, a_second: float, wanted: str) -> AsyncIterator[Figure]:
    """From XADD to 2xx, the program and the bare client in turn: at this pace, and where the program takes half a core.

    Events that come alone cost more than those of a backlog, of which many are read and settled together. So half of
    what a backlog reaches is more than half of a core, and on a machine that is half as slow again for a moment it may
    be more than a whole one.
    """
    ours, bare = await _in_turn(at, sinks, a_second, "structured")
    yield _figure(sinks, a_second, ours, bare, f"p99 at most {wanted}")
    for _ in range(_TRIES):  # the fewer come, the more each costs
        a_second *= _HALF / ours.cpu
        ours = await _undisturbed(partial(_ours, at, sinks, a_second, "structured"))
    ours, bare = await _in_turn(at, sinks, a_second, "structured")
    yield _figure(sinks, a_second, ours, bare, f"p99 at most {wanted}")


def _figure(sinks: int, a_second: float, ours: FanOut, bare: FanOut, wanted: str) -> Figure:
    name = f"XADD to 2xx, {_counted(sinks)}, {a_second:,.1f} events/s"
    return Figure(name, str(ours), f"bare aiohttp: {bare}", bare.p99 / ours.p99, wanted)


async def dear(at: Place, sinks: int, a_second: float, mode: str) -> Figure:
    """What so many subscriptions cost at this pace, the program and the bare client in turn."""
    ours, bare = await _in_turn(at, sinks, a_second, mode)
    name = f"{_counted(sinks)}, {a_second:,.0f} events/s to each" + (", in batches" if mode == "batch" else "")
    return Figure(name, str(ours), f"bare aiohttp: {bare}", bare.cpu / ours.cpu, "within one core")


def _counted(sinks: int) -> str:
    return "one sink" if sinks == 1 else f"{sinks} sinks"


async def _in_turn(at: Place, sinks: int, a_second: float, mode: str) -> tuple[FanOut, FanOut]:
    """The usual run of the program, and that of the bare client."""
    ran: tuple[list[FanOut], list[FanOut]] = [], []
    for _ in range(REPEATS):
        for kept, run in zip(ran, (_ours, _of_bare), strict=True):
            kept.append(await _undisturbed(partial(run, at, sinks, a_second, mode)))
    return _usual(ran[0]), _usual(ran[1])


async def _undisturbed(run: Callable[[], Awaitable[FanOut]]) -> FanOut:
    """A run in which others took next to nothing; the last one, if there is none."""
    ran = await run()
    for _ in range(_MORE):
        if ran.others <= _OTHERS:
            break
        ran = await run()
    return ran


async def _of_bare(at: Place, sinks: int, a_second: float, mode: str) -> FanOut:
    """One run of the bare client."""
    await at.redis.flushall()
    async with _bare(at, sinks, mode) as pid:
        return await _measured(at, pid, sinks, a_second)


async def _ours(at: Place, sinks: int, a_second: float, mode: str) -> FanOut:
    """One run of the program."""
    urls = [f"{at.url}/{number}" for number in range(sinks)]
    wanted = Wanted(urls, 32 if sinks == 1 else 8, mode, "now", LINGER if mode == "batch" else None)
    await at.redis.flushall()
    async with delivering(at.store, at.root, wanted) as daemon:
        await groups(at.redis, sinks)
        return await _measured(at, daemon.pid, sinks, a_second)


def _usual(ran: list[FanOut]) -> FanOut:
    """The one whose p99 is the median."""
    return sorted(ran, key=lambda one: one.p99)[len(ran) // 2]


async def _measured(at: Place, pid: int, sinks: int, a_second: float) -> FanOut:
    arrived(at.url)
    warm = await publish(at.redis, a_second, max(_WARM, 1 / a_second))
    await collected(at.url, warm * sinks)
    before, begun, stolen = await _cpu(at, pid, Arrived()), time.monotonic(), _stolen()
    async with no_rewrites(at.redis):
        published = await publish(at.redis, a_second, _SPAN)
        came = await collected(at.url, published * sinks)
    seconds = time.monotonic() - begun
    others = (_stolen() - stolen) / seconds / (os.cpu_count() or 1)
    cpu = [now - then for then, now in zip(before, await _cpu(at, pid, came), strict=True)]
    if came.events < published * sinks:
        raise RuntimeError(f"{came.events} of {published * sinks} events arrived")
    delivers, store, receiver, load = [one / seconds for one in cpu]
    each = cpu[0] / came.events * 1e6
    return FanOut(came.took_at_most(0.5), came.took_at_most(0.99), delivers, store, receiver, load, each, others)


def _stolen() -> float:
    """Seconds of all processors so far that this machine waited for, while others of its host had them."""
    return float(getattr(psutil.cpu_times(), "steal", 0.0))  # counted on Linux alone


async def _cpu(at: Place, pid: int, came: Arrived) -> tuple[float, float, float, float]:
    """Seconds of CPU so far: of what delivers, the store, the receiver, and this process."""
    store = await at.redis.info("cpu")
    receiver = (came if came.cpu else arrived(at.url)).cpu
    delivers = sum(psutil.Process(pid).cpu_times()[:2])
    return delivers, store["used_cpu_user"] + store["used_cpu_sys"], receiver, time.process_time()


@asynccontextmanager
async def _bare(at: Place, sinks: int, mode: str) -> AsyncIterator[int]:
    """The bare client while the block runs; its process id."""
    command = [sys.executable, "-m", "tests.bench.fanout", at.store, at.url, str(sinks), mode]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        await process.stdout.readline()
        yield process.pid
    finally:
        process.kill()
        await process.wait()


async def main(store: str, url: str, count: int, mode: str) -> None:
    """Post whatever comes, until the process is ended; to each URL one event after the other."""
    queues = [asyncio.Queue[bytes]() for _ in range(count)]
    connector = aiohttp.TCPConnector(limit=0)
    async with Redis.from_url(store, socket_timeout=None) as redis, aiohttp.ClientSession(connector=connector) as http:

        async def post(number: int) -> None:
            while True:
                async with http.post(f"{url}/{number}", data=await queues[number].get()) as answer:
                    answer.raise_for_status()

        posting = [asyncio.create_task(post(number)) for number in range(count)]
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        after = "0"
        while not any(task.done() for task in posting):
            found: Any = await redis.xread({STREAM: after}, block=1000, count=64)
            if mode == "batch" and found:
                await asyncio.sleep(LINGER)  # what the daemon does, too
                found = await redis.xread({STREAM: after})
            entries = found[0][1] if found else []
            bodies = [fields[b"data"] for _, fields in entries]
            if mode == "batch" and bodies:
                bodies = [b"[%b]" % b",".join(bodies)]
            for queue, body in product(queues, bodies):
                queue.put_nowait(body)
            after = entries[-1][0].decode() if entries else after
        await asyncio.gather(*posting)


if __name__ == "__main__":
    _store, _url, _count, _mode = sys.argv[1:]
    gc.freeze()  # like the daemon: a full collection would keep all sinks waiting for some 50 ms, twice a second
    gc.set_threshold(COLLECT_AFTER)
    uvloop.run(main(_store, _url, int(_count), _mode))
