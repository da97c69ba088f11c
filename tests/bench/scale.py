"""How costs grow: with feeds, with those that change, with processes, with records, with subscriptions.

The daemon is the real one, in processes of its own; when feeds are polled the sources tell, not the daemon. Each cost
stands beside that of a smaller number of the same, as a ratio: per feed, per record and per subscription it should stay
what it is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final

import msgspec
import psutil  # type: ignore[import-untyped]  # has no types of its own
from redis.asyncio import Redis

from tests.bench.figures import Figure
from tests.bench.many_sources import QUALIFICATIONS, RESOURCES, change, many_sources, polled
from tests.bench.receiver import receiver
from tests.bench.scene import bench, sandbox, short_directory
from tests.harness.processes import SANDBOX_TOKEN, Daemon, daemon
from tests.harness.waiting import until
from tests.servers import Server, running

_MIB: Final = 1024 * 1024
_INTERVAL: Final = 60.0
_LATE: Final = 1.2  # intervals
_RECORDS: Final = 100  # in each feed: enough that each has a dictionary of its own
_FEW, _MANY = 250, 1_000
_LOOK: Final = 1.0
_READINGS: Final = (100_000, 1_000_000)
_SUBSCRIPTIONS: Final = (100, 1_000)
_IDLE: Final = 30.0
_LONG: Final = 1200.0  # seconds; so long the first readings may take

HEAD: Final = """\
[redis]
url = "{store}"
[http]
bind = "off"
"""
SOURCE: Final = """\
[[sources]]
name = "s{number}"
base_url = "{url}/s{number}"
auth = {{ token_file = "{token}" }}
"""
_FEED: Final = """\
[[sources.feeds]]
resource = "{resource}"
interval = {interval}
"""
_SUBSCRIPTION: Final = """\
[[subscriptions]]
id = "b{number}"
sink = "{sink}/{number}"
allow_private = true
"""


class Cost(msgspec.Struct, frozen=True):
    """What some processes cost over a time in which each feed was polled at least once.

    Attributes:
        cpu: share of one core, of all of them together.
        each: the same for each process.
        rss: bytes of resident memory, of all.
        store: share of one core that the server took.
        rounds: how many there were, of all feeds.
        longest: the longest time between two rounds of a feed, in intervals.
    """

    cpu: float
    each: Sequence[float]
    rss: int
    store: float
    rounds: int
    longest: float

    @property
    def per_round(self) -> float:
        """Milliseconds of CPU for a round, with all that the daemon does beside."""
        return self.cpu * _SPAN / self.rounds * 1000

    def __str__(self) -> str:
        return (
            f"{self.cpu:.0%} of a core, {self.per_round:.1f} ms a round, {self.rss / _MIB:.0f} MiB, "
            f"every round within {self.longest:.2f} intervals; the store {self.store:.0%}"
        )


_SPAN: Final = 2 * _LATE * _INTERVAL


async def scale(root: Path) -> AsyncIterator[Figure]:
    """All of it; takes a quarter of an hour."""
    few = await _polling(root / "few", _FEW)
    yield Figure(f"{4 * _FEW} feeds, nothing changes", str(few))
    idle, busy = await _polling_both(root / "many")
    name = f"{4 * _MANY} feeds"
    yield Figure(f"{name}, nothing changes", str(idle), f"{few.per_round:.1f} ms a round", _ratio(idle, few), "<= 1.2")
    yield Figure("", "", "0.15 of a core and 170 MiB", max(idle.cpu / 0.15, idle.rss / _MIB / 170), "<= 1")
    yield Figure(f"{name}, 1 % change", str(busy), f"{idle.per_round:.1f} ms a round", _ratio(busy, idle))
    for count in (2, 4):
        spread = await _polling(root / f"of{count}", _MANY, processes=count)
        shares = ", ".join(f"{share:.0%}" for share in spread.each)
        limit = f"one process {idle.cpu:.0%}"
        yield Figure(f"{name}, {count} processes", f"{spread} ({shares})", limit, spread.cpu / idle.cpu)
    async for figure in _records(root):
        yield figure
    async for figure in _subscriptions(root):
        yield figure


def _ratio(one: Cost, other: Cost) -> float:
    return one.per_round / other.per_round


async def _polling(root: Path, sources: int, *, processes: int = 1) -> Cost:
    async with _daemons(root, sources, processes) as (daemons, server, url):
        return await _cost(daemons, server, url)


async def _polling_both(root: Path) -> tuple[Cost, Cost]:
    """Without changes, then with a change in one of a hundred feeds in each interval."""
    async with _daemons(root, _MANY, 1) as (daemons, server, url):
        idle = await _cost(daemons, server, url)
        changing = asyncio.create_task(_changing(url, _MANY * len(RESOURCES) // 100))
        try:
            return idle, await _cost(daemons, server, url)
        finally:
            changing.cancel()


async def _changing(url: str, feeds: int) -> None:
    while True:
        change(url, 1)
        await asyncio.sleep(_INTERVAL / feeds)  # the pace is what is wanted


@asynccontextmanager
async def _daemons(root: Path, sources: int, processes: int) -> AsyncIterator[tuple[Sequence[Daemon], Server, str]]:
    """So many daemons on one store, when each feed was polled and the first rush is over."""
    root = short_directory(root.parent, root.name)
    async with AsyncExitStack() as stack:
        server = stack.enter_context(running("valkey", short_directory(root, "a"), appendfsync="everysec"))
        url = stack.enter_context(many_sources(sources, records=_RECORDS))
        config = configured(root, server, url, sources)
        daemons = [await stack.enter_async_context(daemon(config, level="warning")) for _ in range(processes)]
        seen: set[str] = set()

        def all_seen() -> bool:
            seen.update(feed for feed, polls in polled(url).items() if polls)
            if left := [one for one in daemons if one.code is not None]:
                raise RuntimeError(f"daemons left: {left}")
            return len(seen) == sources * len(RESOURCES)

        for _ in range(2):  # the second time each comes in its turn, and the first rush is over
            await until(all_seen, "each feed to be polled", seconds=_LONG, every=_LOOK)
            seen.clear()
        yield daemons, server, url


def configured(root: Path, server: Server, url: str, sources: int) -> Path:
    token = root / "token"
    token.write_text(SANDBOX_TOKEN)
    token.chmod(0o600)
    text = [HEAD.format(store=server.url)]
    for number in range(sources):
        text.append(SOURCE.format(number=number, url=url, token=token))
        text += [_FEED.format(resource=resource, interval=_INTERVAL) for resource in RESOURCES]
    config = root / "poller.toml"
    config.write_text("".join(text))
    return config


async def _cost(daemons: Sequence[Daemon], server: Server, url: str) -> Cost:
    polled(url)
    before, store = [cpu_of(one.pid) for one in daemons], cpu_of(server.pid)
    begun = time.monotonic()
    await asyncio.sleep(_SPAN)  # what is measured
    seconds = time.monotonic() - begun
    each = [(cpu_of(one.pid) - cpu) / seconds for one, cpu in zip(daemons, before, strict=True)]
    polls = {feed: _rounds(feed, moments) for feed, moments in polled(url).items()}
    gaps = [
        later - sooner for moments in polls.values() for sooner, later in pairwise((begun, *moments, begun + seconds))
    ]
    return Cost(
        cpu=sum(each),
        each=each,
        rss=sum(psutil.Process(one.pid).memory_info().rss for one in daemons),
        store=(cpu_of(server.pid) - store) / seconds,
        rounds=sum(map(len, polls.values())),
        longest=max(gaps) / _INTERVAL,
    )


def _rounds(feed: str, moments: Sequence[float]) -> Sequence[float]:
    """A round of achievements is a request for each qualification."""
    return moments[::QUALIFICATIONS] if feed.endswith("achievements") else moments


def cpu_of(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


async def _records(root: Path) -> AsyncIterator[Figure]:
    """One feed of many records: read for the first time, and read again."""
    speeds: list[tuple[float, float, float]] = []
    for count in _READINGS:
        with (
            sandbox(count) as url,
            running("valkey", short_directory(root, f"r{count}"), appendfsync="everysec") as server,
        ):
            async with bench(url, server.url, delta=False) as feed:
                first = await feed.round()
                silent = [await feed.round() for _ in range(3)]
                used = await feed.redis.memory_usage(feed.keys.snapshots, samples=0) or 0
                rss = psutil.Process().memory_info().rss
                if first.created != first.records or any(one.changes for one in silent):
                    raise RuntimeError(f"not a first and three silent readings: {first}")
                best = median(one.records / one.seconds for one in silent)
                speeds.append((first.records / first.seconds, best, used / first.records))
                (speed, again, size), (speed0, again0, size0) = speeds[-1], speeds[0]
                yield Figure(
                    f"first reading of {first.records} records",
                    f"{speed:,.0f}/s, {rss / _MIB:.0f} MiB afterwards, {size:.0f} bytes a snapshot",
                    f"{speed0:,.0f}/s, {size0:.0f} bytes with {_READINGS[0]}",
                    speed / speed0,
                )
                yield Figure("", f"read again {again:,.0f}/s", f"{again0:,.0f}/s", again / again0)


async def _until_reading(store: str, pairs: int) -> None:
    """Wait until each pair waits for what comes: its group has somebody who reads."""
    async with Redis.from_url(store) as client:

        async def all_reading() -> bool:
            groups = [await client.xinfo_groups(key) for key in await client.keys("poller:*/*:events")]
            return sum(int(group["consumers"]) for of_one in groups for group in of_one) >= pairs

        await until(all_reading, f"{pairs} readers", seconds=_LONG, every=_LOOK)


async def _subscriptions(root: Path) -> AsyncIterator[Figure]:
    """Subscriptions to four feeds of which nothing comes."""
    costs: list[tuple[float, float]] = []
    for count in _SUBSCRIPTIONS:
        place = short_directory(root, f"s{count}")
        with receiver() as sink, running("valkey", short_directory(place, "a"), appendfsync="everysec") as server:
            config = configured(place, server, sink, 1)
            subscriptions = (_SUBSCRIPTION.format(number=number, sink=sink) for number in range(count))
            config.write_text(config.read_text() + "".join(subscriptions))
            async with daemon(config, command=("poller", "run", "--only", "deliver"), level="warning") as one:
                await _until_reading(server.url, 4 * count)
                before, rss = cpu_of(one.pid), psutil.Process(one.pid).memory_info().rss
                await asyncio.sleep(_IDLE)  # what is measured
                costs.append(((cpu_of(one.pid) - before) / _IDLE / count, rss / count))
                (cpu, size), (cpu0, _) = costs[-1], costs[0]
                yield Figure(
                    f"{count} subscriptions to 4 feeds, nothing comes",
                    f"{cpu * count:.0%} of a core, {rss / _MIB:.0f} MiB",
                    f"{cpu * 1e6:.0f} µs CPU a second and {size / 1024:.0f} KiB for each",
                    cpu / cpu0,
                    "<= 1.2",
                )
