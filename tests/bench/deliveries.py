"""Deliveries by the real daemon, signed, to a receiver that costs next to nothing: how many, how soon, how dear."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from itertools import combinations
from pathlib import Path
from statistics import median

import msgspec
import psutil  # type: ignore[import-untyped]  # has no types of its own
from redis.asyncio import Redis

from tests.bench.delivering import (
    Place,
    Ran,
    Wanted,
    collected,
    delivering,
    drained,
    fill,
    groups,
    no_rewrites,
    peak_rss,
    publish,
)
from tests.bench.fanout import dear, soon
from tests.bench.figures import Figure
from tests.bench.posting import posting
from tests.bench.receiver import Arrived, arrived
from tests.servers import Server

_MIB = 1024 * 1024
_REPEATS = 3
_WANTED = 1_200  # deliveries a second
_EVENTS = {1: 6_000, 32: 15_000}
_SINKS = 100
_MOST_SINKS = 1_000
_PACE, _BATCH_PACE = 3, 10  # events a second to each of them
_PARTS = 20  # of a long backlog
_CONNECTING = 100  # of its events, one
_LATENCY_SECONDS = 8.0
_BACKLOG = 1_000_000
_SLOW_ONES = 400  # events that the slow sink has taken when memory is looked at


async def deliveries(server: Server, receiver_url: str, root: Path, *, backlog: int) -> AsyncIterator[Figure]:
    """To one sink, to a hundred, to a thousand, beside one that hangs, in batches, and with a long backlog.

    ``backlog``: how many events wait for one sink in the long backlog.
    """
    async with Redis.from_url(server.url) as redis:
        at, url = Place(redis, server.url, root, receiver_url), receiver_url
        usual = 0.0
        for concurrency, events in _EVENTS.items():
            ran = await _repeated(at, Wanted([f"{url}/0"], concurrency), events)
            usual = median(one.a_second for one in ran)
            for figure in _beside(url, ran, f"one sink, concurrency {concurrency}", concurrency):
                yield figure
        yield await _soon(at, _WANTED / 2)
        yield await _soon(at, usual / 2)
        async for figure in soon(at, 1, usual / 2, "10 ms"):
            yield figure
        many = Wanted([f"{url}/{number}" for number in range(_SINKS)])
        ran = await _repeated(at, many, 150)
        for figure in _beside(url, ran, f"{_SINKS} sinks, concurrency 8 each", 32):
            yield figure
        async for figure in soon(at, _SINKS, median(one.a_second for one in ran) / 2 / _SINKS, "40 ms"):
            yield figure
        most = Wanted([f"{url}/{number}" for number in range(_MOST_SINKS)])
        ran = await _repeated(at, most, 30)
        for figure in _beside(url, ran, f"{_MOST_SINKS} sinks, concurrency 8 each", 32):
            yield figure
        async for figure in soon(at, _MOST_SINKS, median(one.a_second for one in ran) / 2 / _MOST_SINKS, "300 ms"):
            yield figure
        yield await dear(at, _MOST_SINKS, _PACE, "structured")
        yield await dear(at, _MOST_SINKS, _BATCH_PACE, "batch")
        yield await _hanging(at, _WANTED / 2 / _SINKS)
        ran = await _repeated(at, Wanted([f"{url}/0"], mode="batch"), 100_000)
        yield Figure("batches of 100 to one sink", _speed(ran, " events/s"), wanted="20 000 events/s")
        yield await _long(at, backlog)
        yield await _backlog(at)


async def _repeated(at: Place, wanted: Wanted, events: int) -> Sequence[Ran]:
    ran: list[Ran] = []
    for _ in range(_REPEATS):
        await fill(at.redis, events)
        arrived(at.url)
        async with delivering(at.store, at.root, wanted) as daemon:
            ran.append(await drained(daemon, at.url, events * len(wanted.sinks)))
    return ran


def _beside(url: str, ran: Sequence[Ran], where: str, concurrency: int) -> list[Figure]:
    best = _best(ran)
    httpx, aiohttp = (
        max(
            (posting(client, f"{url}/0", concurrency=concurrency, count=8_000) for _ in range(_REPEATS)),
            key=lambda posted: posted.a_second,
        )
        for client in ("httpx", "aiohttp")
    )
    arrived(url)
    limit = f"bare httpx {httpx.a_second:,.0f}/s, {httpx.cpu:.0f} µs CPU each"
    raw = f"bare aiohttp {aiohttp.a_second:,.0f}/s, {aiohttp.cpu:.0f} µs CPU each"
    return [
        Figure(f"deliveries, {where}", _speed(ran, "/s"), limit, best / httpx.a_second, "1 200/s"),
        Figure("", "", raw, best / aiohttp.a_second),
    ]


def _speed(ran: Sequence[Ran], unit: str) -> str:
    speeds, cpu = [one.a_second for one in ran], min(one.cpu for one in ran)
    return f"{max(speeds):,.0f}{unit} (median {median(speeds):,.0f}), {cpu:.0f} µs CPU each"


def _best(ran: Sequence[Ran]) -> float:
    return max(one.a_second for one in ran)


async def _soon(at: Place, a_second: float) -> Figure:
    took = [await _paced(at, Wanted([f"{at.url}/0"], 32), a_second) for _ in range(_REPEATS)]
    return Figure(f"XADD to 2xx, one sink, {a_second:,.0f} events/s", _percentiles(took), wanted="p99 < 50 ms")


async def _hanging(at: Place, a_second: float) -> Figure:
    """The same load on the healthy sinks, with a hundredth that answers and with one that does not."""
    sinks = [f"{at.url}/{number}" for number in range(_SINKS - 1)]
    well, beside = [], []
    for _ in range(_REPEATS):
        well.append(await _paced(at, Wanted([*sinks, f"{at.url}/99"]), a_second))
        beside.append(await _paced(at, Wanted([*sinks, f"{at.url}/hang"]), a_second))
    return Figure(
        f"XADD to 2xx, {_SINKS} sinks of which one hangs, {a_second:,.0f} events/s to each",
        _percentiles(beside),
        f"none hangs: {_percentiles(well)}",
        median(p99 for p99, _ in beside) / median(p99 for p99, _ in well),
        "< 1.2",
    )


async def _paced(at: Place, wanted: Wanted, a_second: float) -> tuple[float, float]:
    """Seconds within which 99 % and half of the events were answered, those of the first second left out."""
    await at.redis.flushall()
    arrived(at.url)
    wanted = msgspec.structs.replace(wanted, start="now")
    answering = sum(not sink.endswith("hang") for sink in wanted.sinks)
    async with delivering(at.store, at.root, wanted) as daemon:
        await groups(at.redis, len(wanted.sinks))
        await publish(at.redis, a_second, 1.0)
        warm = await collected(at.url, int(a_second) * answering)
        async with no_rewrites(at.redis):
            published = await publish(at.redis, a_second, _LATENCY_SECONDS)
            came: Arrived = await collected(at.url, published * answering)
        if warm.events + came.events < (int(a_second) + published) * answering:
            raise RuntimeError(f"{came.events} of {published * answering} events arrived: {daemon}")
    return came.took_at_most(0.99), came.took_at_most(0.5)


def _percentiles(took: Sequence[tuple[float, float]]) -> str:
    (p99, p50), usual = min(took), median(p99 for p99, _ in took)
    return f"p50 {p50 * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms (median p99 {usual * 1000:.1f} ms)"


async def _long(at: Place, events: int) -> Figure:
    """A backlog to one sink: what an event costs the daemon at its end, beside its start.

    The speed of a machine varies by more than what is looked for. The receiver does the same for each event, meanwhile
    and on the same machine, so the daemon's CPU is counted in that of the receiver.
    """
    await fill(at.redis, events)
    arrived(at.url)
    parts: list[_Part] = []
    async with delivering(at.store, at.root, Wanted([f"{at.url}/0"], 32)) as daemon:
        process = psutil.Process(daemon.pid)
        came = await collected(at.url, events // _CONNECTING)  # a part of its own, in which connections are made
        before, left = _Mark.of(process, came), events - came.events
        for parts_left in range(_PARTS, 0, -1):
            part = left // parts_left
            came = await collected(at.url, part, within=events / 100)
            left -= came.events
            if came.events < part:
                raise RuntimeError(f"{events - left} of {events} events arrived: {daemon}")
            after = _Mark.of(process, came)
            parts.append(before.until(after, came.events))
            before = after
    start, end = trend([part.cost for part in parts])
    return Figure(
        f"{events} events waiting for one sink, its end",
        f"{end:.2f} times the receiver's CPU; {_speeds(parts[_PARTS // 2 :])}",
        f"its start {start:.2f} times; {_speeds(parts[: _PARTS // 2])}",
        start / end,
        "1.0",
    )


class _Mark(msgspec.Struct, frozen=True):
    """A moment of a backlog: CPU of the daemon and of the receiver so far, and when its last event came, in seconds."""

    daemon: float
    receiver: float
    at: float

    @classmethod
    def of(cls, daemon: psutil.Process, came: Arrived) -> _Mark:
        return cls(sum(daemon.cpu_times()[:2]), came.cpu, came.at[-1])

    def until(self, end: _Mark, events: int) -> _Part:
        """The part of a backlog up to another moment."""
        daemon, receiver = end.daemon - self.daemon, end.receiver - self.receiver
        return _Part(daemon / receiver, daemon / events, events / (end.at - self.at))


class _Part(msgspec.Struct, frozen=True):
    """A part of a backlog.

    Attributes:
        cost: CPU of the daemon for each second of the receiver's.
        each: CPU of the daemon for each event, in seconds.
        a_second: events.
    """

    cost: float
    each: float
    a_second: float


def _speeds(parts: Sequence[_Part]) -> str:
    speed, each = median(part.a_second for part in parts), median(part.each for part in parts)
    return f"{speed:,.0f}/s and {each * 1e6:.0f} µs CPU each in the median part of this half"


def trend(values: Sequence[float]) -> tuple[float, float]:
    """The first and the last point of the straight line through evenly spaced values (Theil and Sen).

    Its slope is the median of the slopes between all pairs of them: a few values that are far off do not bend it.
    """
    places = range(len(values))
    slope = median((values[second] - values[first]) / (second - first) for first, second in combinations(places, 2))
    start = median(value - slope * place for place, value in enumerate(values))
    return start, start + slope * (len(values) - 1)


async def _backlog(at: Place) -> Figure:
    small, large = [await _peak(at, count) for count in (_BACKLOG // 10, _BACKLOG)]
    return Figure(
        f"peak RSS with {_BACKLOG} events waiting for a slow sink",
        f"{large / _MIB:.0f} MiB",
        f"with {_BACKLOG // 10} events {small / _MIB:.0f} MiB",
        large / small,
        "1.0",
    )


async def _peak(at: Place, count: int) -> int:
    await fill(at.redis, count, words=1)
    arrived(at.url)
    async with delivering(at.store, at.root, Wanted([f"{at.url}/slow"])) as daemon:
        await collected(at.url, _SLOW_ONES)
        return peak_rss(daemon)
