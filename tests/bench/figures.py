"""The figures: each measured on the program's own round, beside its raw limit."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import httpx
import msgspec

from poller.resources import RESOURCES
from poller.source.paging import ListQuery
from poller.store.feed import encode_listing, kept_listings
from tests.bench.limits import (
    Written,
    bare_fetch,
    bare_listings,
    bare_split,
    pipelined_reads,
    pipelined_writes,
    written,
)
from tests.bench.scene import PAGE, RESOURCE, Bench, bench
from tests.servers import Server

_IDLE_ROUNDS = 200
NODE_BYTES = 16384  # as the embedded server has it
_READINGS = 3
_CHANGED_SHARE = 0.01


class Figure(msgspec.Struct, frozen=True):
    """One line of the report.

    Attributes:
        name: what was measured.
        value: with its unit, as text.
        limit: what it stands beside, as text; empty where there is none.
        ratio: value over limit; None where there is none.
        wanted: the ratio or value to reach, as text; empty where none is set.
    """

    name: str
    value: str
    limit: str = ""
    ratio: float | None = None
    wanted: str = ""

    @property
    def is_low(self) -> bool:
        """Whether the ratio is below half of what is wanted; noise alone does not bring it there."""
        floor = self.wanted.replace(".", "", 1).isdecimal() and float(self.wanted)
        return bool(floor) and self.ratio is not None and self.ratio < floor / 2


async def reading(api_url: str, server: Server) -> AsyncIterator[Figure]:
    """First reading, silent reading, memory, then a delta and idle rounds, on one feed."""
    async with bench(api_url, server.url, delta=False) as full:
        await full.redis.config_set("stream-node-max-bytes", NODE_BYTES)
        begun = time.process_time()
        first = await full.round()
        cpu = time.process_time() - begun
        data = await written(full)
        raw = pipelined_writes(server.url, data)
        speed = first.records / first.seconds
        yield Figure(
            f"first reading of {first.records} records",
            f"{speed:,.0f} records/s, {cpu / first.records * 1e6:.1f} µs CPU each",
            f"bare redis-py pipeline of the same XADD and HSET {raw:,.0f}/s",
            speed / raw,
            "1.0",
        )
        async for figure in _silent(full, server, data):
            yield figure
        async for figure in _memory(full, data):
            yield figure
        await full.store.release()
        yield await _by_new_process(full, api_url, server)
    async with bench(api_url, server.url) as feed:
        async for figure in _deltas(feed, api_url):
            yield figure
        await feed.store.release()


async def _silent(full: Bench, server: Server, data: Written) -> AsyncIterator[Figure]:
    speed = await _silent_speed(full)
    fetched, bodies = await bare_fetch(full.api, ListQuery(limit=PAGE))
    yield Figure(
        "silent full reading",
        f"{speed:,.0f} records/s",
        f"fetch and split alone {fetched:,.0f}/s",
        speed / fetched,
        "0.5",
    )
    read = pipelined_reads(server.url, full, data)
    yield Figure("", "", f"HMGET of the same snapshots {read:,.0f}/s", speed / read)
    split = bare_split(bodies)
    yield Figure("", "", f"JSON split alone {split:,.0f}/s", speed / split)
    yield await _shifted(full, "every page has shifted", fetched)


async def _by_new_process(feed: Bench, api_url: str, server: Server) -> Figure:
    """The first reading of processes that have read nothing before; of three, the best one, as above."""
    speed = max([await asyncio.to_thread(_reader, "speed", api_url, server) for _ in range(_READINGS)])
    fetched, _ = await bare_fetch(feed.api, ListQuery(limit=PAGE))
    name, limit = "silent full reading by a new process", f"fetch and split alone {fetched:,.0f}/s"
    return Figure(name, f"{speed:,.0f} records/s", limit, speed / fetched, "0.5")


async def _silent_speed(feed: Bench, *, shifted: bool = False) -> float:
    """Records a second of the best of three readings in which nothing has changed, but the places of records."""
    readings = []
    for _ in range(_READINGS):
        if shifted:
            await _forget_pages(feed)
        readings.append(await feed.round())
    silent = max(readings, key=lambda result: result.records / result.seconds)
    if silent.changes:
        raise RuntimeError(f"a silent reading published {silent.changes} events")
    return silent.records / silent.seconds


async def _shifted(feed: Bench, what: str, fetched: float) -> Figure:
    speed = await _silent_speed(feed, shifted=True)
    name, limit = f"the same, {what}", f"fetch and split alone {fetched:,.0f}/s"
    return Figure(name, f"{speed:,.0f} records/s", limit, speed / fetched, "0.25")


async def _forget_pages(feed: Bench) -> None:
    """Delete the digests of pages and listings, so that each has to be compared with snapshots."""
    await feed.redis.delete(feed.keys.page_digests)
    for name, one in (await kept_listings(feed.redis, feed.keys.listings)).items():
        await feed.redis.hset(feed.keys.listings, name, encode_listing(msgspec.structs.replace(one, content=b"")))


async def many_listings(api_url: str, server: Server) -> AsyncIterator[Figure]:
    """The silent reading of a feed that has one listing for each qualification."""
    async with bench(api_url, server.url) as named:
        pages = (await bare_fetch(named.api, ListQuery(limit=PAGE), RESOURCES["evidenceVariants"].path))[1]
    names = {record["qualificationID"] for page in pages for record in msgspec.json.decode(page)["results"]}
    async with bench(api_url, server.url, qualifications=tuple(sorted(names))) as feed:
        for _ in range(2):  # the second one compares what the first has published
            await feed.round()
        paths = [feed.feed.resource.listing_path(name) for name in sorted(names)]
        fetched = max([await bare_listings(feed.api, paths, ListQuery(limit=PAGE)) for _ in range(3)])
        speed = await _silent_speed(feed)
        yield Figure(
            f"silent full reading of {len(names)} listings",
            f"{speed:,.0f} records/s",
            f"fetch and split alone {fetched:,.0f}/s",
            speed / fetched,
            "0.5",
        )
        yield await _shifted(feed, "every listing differs", fetched)


async def _memory(full: Bench, data: Written) -> AsyncIterator[Figure]:
    records = len(data.snapshots)
    snapshots = await full.redis.memory_usage(full.keys.snapshots, samples=0) or 0
    events = await full.redis.memory_usage(full.keys.events, samples=0) or 0
    packed = sum(len(value) for _, value in data.snapshots)
    raw = sum(len(body) for body in await _bodies(full))
    yield Figure(
        "Redis bytes per record, snapshot",
        f"{snapshots / records:.0f} B ({packed / records:.0f} B packed)",
        f"its JSON {raw / records:.0f} B",
        snapshots / raw,
    )
    size = sum(map(len, data.events))
    yield Figure(
        "Redis bytes per event, stream",
        f"{events / len(data.events):.0f} B",
        f"its JSON {size / len(data.events):.0f} B",
        events / size,
    )


async def _bodies(full: Bench) -> list[bytes]:
    return (await bare_fetch(full.api, ListQuery(limit=PAGE)))[1]


async def _deltas(feed: Bench, api_url: str) -> AsyncIterator[Figure]:
    start = await feed.round()  # a resync: leaves a delta token
    await feed.round()  # which is confirmed by another reading, for it has several pages
    changes = int(start.records * _CHANGED_SHARE)
    async with httpx.AsyncClient(timeout=None) as http:  # noqa: S113 -- thousands of changes in one request
        (await http.post(f"{api_url}/_sandbox/changes", params={"count": str(changes)})).raise_for_status()
    delta = await feed.round()
    yield Figure(
        f"delta after {changes} changes",
        f"{delta.changes} events in {delta.seconds * 1000:.0f} ms",
        f"the silent full reading takes {start.seconds * 1000:.0f} ms",
        delta.seconds / start.seconds,
    )
    async for figure in _idle(feed):
        yield figure


async def _idle(feed: Bench) -> AsyncIterator[Figure]:
    """Rounds without news and what they cannot do without, in turn; of each the best ones."""
    script = feed.redis.register_script("return redis.call('HGET', KEYS[1], 'delta_token')")

    async def bare() -> None:
        token = await script(keys=[feed.keys.state])
        await feed.api.get(RESOURCE.path, (("sinceDeltaToken", token.decode()),))

    costs = [(await _each(feed.round), await _each(bare)) for _ in range(_READINGS)]
    seconds, cpu = _best([own for own, _ in costs])
    raw, raw_cpu = _best([limit for _, limit in costs])
    yield Figure(
        "idle rounds, one after the other",
        f"{1 / seconds:,.0f} rounds/s, {cpu * 1e6:.0f} µs CPU each",
        f"its GET and one script alone {1 / raw:,.0f}/s",
        raw / seconds,
    )
    yield Figure("", "", f"{raw_cpu * 1e6:.0f} µs CPU", cpu / raw_cpu, "<= 1.5")


async def _each(work: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    """Seconds, and those of CPU, that this takes when it is done again and again."""
    begun, cpu = time.perf_counter(), time.process_time()
    for _ in range(_IDLE_ROUNDS):
        await work()
    return (time.perf_counter() - begun) / _IDLE_ROUNDS, (time.process_time() - cpu) / _IDLE_ROUNDS


def _best(costs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return min(seconds for seconds, _ in costs), min(cpu for _, cpu in costs)


def peak_rss(api_url: str, server: Server) -> int:
    """Peak resident memory in bytes of a process that reads everything for the first time and once more."""
    return int(_reader("peak", api_url, server))


def _reader(what: str, api_url: str, server: Server) -> float:
    command = [sys.executable, "-m", "tests.bench.reader", what, api_url, server.url]
    return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
