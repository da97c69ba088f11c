"""A feed consumer on a real store, with a sink that answers as a test says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from secrets import token_hex
from typing import Any, Final

import msgspec
from redis.asyncio import Redis

from poller.clock import Clock
from poller.delivery.endpoint import EndpointState
from poller.delivery.endpoint_health import Health
from poller.delivery.feed_consumer import FeedConsumer
from poller.delivery.filters import Predicate, Subscription
from poller.delivery.projection import Projection
from poller.delivery.retry import RetryPolicy
from poller.delivery.sinks.base import Outcome, Sink
from poller.lifecycle import ended
from poller.store.consumer_state import ConsumerScripts, ConsumerStore
from poller.store.keys import ConsumerKeys, FeedKeys
from tests.delivery.events import entry
from tests.delivery.outcomes import answered
from tests.delivery.sinks import PythonSink
from tests.harness.waiting import patience

FEED: Final = "acme/contractTypes"
NAME: Final = "rostering"
EVENTS: Final = FeedKeys.of("poller", FEED).events
KEYS: Final = ConsumerKeys.of("poller", FEED, NAME)
TAKEN: Final = answered(204, error="status 204")
FAILED: Final = answered(500, error="status 500")

Answer = Callable[[int], Awaitable[Outcome]]


async def taken(_: int) -> Outcome:
    """The answer of a sink that accepts every event."""
    return TAKEN


class Scripted(PythonSink):
    """A scripted sink that records the sequence numbers of the events it was sent."""

    def __init__(self, answer: Answer = taken) -> None:
        self.answer = answer
        self.sent: list[int] = []
        self._came = asyncio.Event()

    async def post(self, body: bytes) -> Outcome:
        number = int(json.loads(body)["sequence"])
        self.sent.append(number)
        self._came.set()
        return await self.answer(number)

    async def until(self, true: Callable[[list[int]], bool]) -> None:
        """Wait until this is true of the sequence numbers sent."""
        async with patience(f"what was to be sent; so far {self.sent[-20:]}"):
            while not true(self.sent):
                self._came.clear()
                await self._came.wait()

    async def until_count(self, count: int) -> list[int]:
        """Wait until this many events were sent; return their sequence numbers."""
        await self.until(lambda sent: len(sent) >= count)
        return self.sent


class _Unnoted:
    """An endpoint store that stores nothing."""

    async def _note(self, *_: Any, **__: Any) -> None: ...

    until = health = rest = recovered = _note

    async def healths(self, _: str) -> dict[str, Health]:
        return {}


def subscription(schedule: timedelta, wanted: Predicate = lambda _: True, retries: int = 2) -> Subscription:
    """A subscription with this wait after each of this many failures."""
    waits = RetryPolicy((schedule,) * retries, 0.0)
    return Subscription(NAME, wanted, waits, timedelta(days=5), start="earliest", concurrency=4)


@asynccontextmanager
async def delivering(
    client: Redis,
    sink: Sink,
    *,
    schedule: timedelta = timedelta(hours=1),
    wanted: Predicate = lambda _: True,
    retries: int = 2,
    projection: Projection | None = None,
    stored: Callable[..., ConsumerStore] = ConsumerStore,
) -> AsyncIterator[FeedConsumer]:
    """A feed consumer that delivers while the block runs; it ends as in a crash, but releases its lease."""
    clock = Clock()
    given = subscription(schedule, wanted, retries)
    if projection is not None:
        given = msgspec.structs.replace(given, projection={FEED: projection}.__getitem__)
    subscriber = EndpointState(
        given,
        sink,
        _Unnoted(),
        paused_until=None,
        clock=clock,
    )
    store = stored(
        client,
        ConsumerScripts(client),
        KEYS,
        events=EVENTS,
        subscription=NAME,
        nonce=token_hex(4),
        lease=timedelta(minutes=5),
        clock=clock,
    )
    assert await store.lease.acquire() is None
    pair = FeedConsumer(FEED, subscriber, store, clock=clock)
    running = asyncio.create_task(pair.run())
    try:
        yield pair
        assert not running.done(), running
    finally:
        await ended(running)
        await store.lease.release()


async def publish(client: Redis, *keys: str, start: int = 1) -> None:
    """Publish events of these records; the n-th has the sequence number n and the entry id n-0."""
    adding = client.pipeline(transaction=False)
    for number, key in enumerate(keys, start=start):
        adding.xadd(EVENTS, {"data": entry(key=key, number=number)}, id=f"{number}-0")
    await adding.execute()
