"""What it costs to be measured: reading what the store says of many, writing it all as text, counting an attempt.

Each stands beside what goes on meanwhile or without it: how late the loop was while it was read, and what an attempt
costs that nobody counts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

from redis.asyncio import Redis

from poller.changes.plan import RoundCounts
from poller.daemon.stored_metrics import StoredFigures
from poller.delivery.delivery_tracker import AttemptReport
from poller.delivery.dispatcher import count
from poller.delivery.retry import Delivered
from poller.redis.client import commands
from poller.store.keys import FeedKeys, group_of
from poller.store.stats import QUICK_SAMPLES, backlogs, feed_stats
from poller.telemetry.metrics import attempts_of, no_attempts_of, process_metrics
from poller.web.health import ScrapeState, written
from tests.bench.figures import Figure
from tests.delivery.outcomes import answered
from tests.servers import Server

_FEEDS: Final = 4_000
_SUBSCRIPTIONS: Final = 1_000
_ATTEMPTS: Final = 200_000
_PREFIX: Final = "poller"
_NOW: Final = datetime(2026, 3, 2, 8, 15, tzinfo=UTC)
T = TypeVar("T")


async def metering(server: Server) -> AsyncIterator[Figure]:
    """All of it; takes half a minute."""
    feeds = [f"s{number // 4}/f{number % 4}" for number in range(_FEEDS)]
    names = [f"b{number}" for number in range(_SUBSCRIPTIONS)]
    async with commands(server.url) as client:
        await _filled(client, feeds, names)
        found, told = await _measured(lambda: feed_stats(client, _PREFIX, feeds, samples=QUICK_SAMPLES))
        yield Figure(f"what the store says of {_FEEDS} feeds", *told)
        pairs = [(name, feed) for feed in feeds[:4] for name in names]
        _, told = await _measured(lambda: backlogs(client, _PREFIX, pairs, now=_NOW))
        yield Figure(f"... of {_SUBSCRIPTIONS} subscriptions to four feeds", *told)
    for feed in feeds:
        process_metrics().rounds.ended(feed, RoundCounts(1, 5, 1, 1, 1, 1, 1, 0.1), mode="delta", result="ok")
    figures = StoredFigures(tuple(found.values()), intervals=dict.fromkeys(feeds, 60.0))
    moment = ScrapeState(ready=True, up=True, findings=(), stored=figures)
    text, told = await _measured(lambda: asyncio.to_thread(written, moment, "text"))
    yield Figure(f"text of all metrics, {len(text) / 1e6:.1f} MB", *told)
    yield _attempts()


async def _measured(work: Callable[[], Awaitable[T]]) -> tuple[T, tuple[str, str]]:
    """Its second time, in words: how long, how much CPU, how late the loop was meanwhile."""
    await work()
    late: list[float] = []
    metering = asyncio.create_task(_late(late))
    begun, cpu = time.perf_counter(), time.process_time()
    try:
        result = await work()
        seconds, spent = time.perf_counter() - begun, time.process_time() - cpu
    finally:
        metering.cancel()
        with suppress(asyncio.CancelledError):
            await metering
    loop = f"the loop late by {max(late) * 1000:.1f} ms at most"
    return result, (f"{seconds * 1000:.0f} ms, {spent * 1000:.0f} ms CPU", loop)


async def _late(late: list[float]) -> None:
    while True:
        due = time.perf_counter() + 0.001
        await asyncio.sleep(0.001)  # what is measured: how late this is over
        late.append(time.perf_counter() - due)


def _attempts() -> Figure:
    """An attempt that went well, with all that is counted of it."""
    told = [AttemptReport("1-0", "id", 1, Delivered(), "2026-03-02T08:14:59.500Z", 660)]
    outcome, series, now = answered(204, seconds=0.01), attempts_of("bench"), _NOW + timedelta(seconds=1)
    begun = time.process_time()
    for _ in range(_ATTEMPTS):
        count(told, outcome, series, now=now)
    each = (time.process_time() - begun) / _ATTEMPTS
    no_attempts_of("bench")
    return Figure("counting an attempt", f"{each * 1e6:.1f} µs CPU", wanted="<= 3")


async def _filled(client: Redis, feeds: list[str], names: list[str]) -> None:
    filling = client.pipeline(transaction=False)
    for number, feed in enumerate(feeds):
        keys = FeedKeys.of(_PREFIX, feed)
        at = "2026-03-02T08:15:00.000Z"
        state: dict[Any, Any] = {"sequence": "3", "round": '{"ok":true,"mode":"delta"}', "round_at": at, "good_at": at}
        filling.hset(keys.state, mapping=state)
        filling.hset(keys.snapshots, mapping={str(one): b"x" * 100 for one in range(10)})
        for sequence in range(1, 4):
            filling.xadd(keys.events, {"data": b'{"sequence":"%020d"}' % sequence})
        if number < 4:
            for name in names:
                filling.xgroup_create(keys.events, group_of(name), id="0")
    await filling.execute()
