"""A subscription with a sink of plain Python that records requests and answers as a test says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import msgspec

from poller.clock import Clock
from poller.delivery.endpoint import EndpointState
from poller.delivery.endpoint_health import Health
from poller.delivery.feed_consumer import ConsumerStorage, FeedConsumer
from poller.delivery.filters import Subscription
from poller.delivery.retry import RetryPolicy
from poller.delivery.sinks.base import Outcome
from poller.errors import StoreUnavailable
from tests.delivery.outcomes import answered
from tests.delivery.sinks import PythonSink
from tests.harness.waiting import limited

OK = answered(204)
PATIENCE = 20.0


def now() -> datetime:
    return datetime.now(UTC)


def subscription(**changes: object) -> Subscription:
    """A subscription with retry waits of milliseconds."""
    wanted = Subscription(
        "s", lambda _: True, RetryPolicy([timedelta(milliseconds=5)] * 3, 0.0), timedelta(days=5), start="earliest"
    )
    return msgspec.structs.replace(wanted, **changes)


@dataclass
class Posted(PythonSink):
    """A sink; ``answer`` gives an outcome for a body, or a future that delays it."""

    answer: Callable[[bytes], Outcome | asyncio.Future[Outcome]] = lambda _: OK
    bodies: list[bytes] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    in_flight: int = 0
    most_in_flight: int = 0

    async def post(self, body: bytes) -> Outcome:
        self.bodies.append(body)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        self.changed.set()
        try:
            answer = self.answer(body)
            return answer if isinstance(answer, Outcome) else await answer
        finally:
            self.in_flight -= 1

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until this is true of the posted bodies."""
        async with limited(PATIENCE):
            while not true():
                self.changed.clear()
                await self.changed.wait()

    def ids(self) -> list[str]:
        """Ids of all posted events, batched or not."""
        bodies = [json.loads(body) for body in self.bodies]
        return [one["id"] for body in bodies for one in (body if isinstance(body, list) else [body])]


@dataclass
class Noted:
    """An endpoint store that records each write and keeps health by feed; the next ``away`` writes fail."""

    told: list[tuple[str, Any]] = field(default_factory=list)
    away: int = 0
    kept: dict[str, Health] = field(default_factory=dict)

    async def until(self, subscription: str, moment: datetime) -> None:  # noqa: ARG002 -- as the real one
        self._note("until", moment)

    async def health(self, subscription: str, feed: str, health: Health) -> None:  # noqa: ARG002 -- as the real one
        self._note("health", health)
        self.kept[feed] = health

    async def healths(self, subscription: str) -> dict[str, Health]:  # noqa: ARG002 -- as the real one
        return self.kept

    async def rest(self, subscription: str, *, by: Literal["sink", "failures"], reason: str, at: datetime) -> None:  # noqa: ARG002 -- as the real one
        self._note("rest", by)

    async def recovered(self, subscription: str, at: datetime) -> None:  # noqa: ARG002 -- as the real one
        self._note("recovered", None)

    def names(self) -> list[str]:
        return [name for name, _ in self.told]

    def _note(self, name: str, value: object) -> None:
        if self.away:
            self.away -= 1
            raise StoreUnavailable("away")
        self.told.append((name, value))


def subscriber(
    posted: Posted,
    noted: Noted | None = None,
    *,
    clock: Clock | None = None,
    paused_until: datetime | None = None,
    **changes: object,
) -> EndpointState:
    wanted = subscription(**changes)
    return EndpointState(
        wanted,
        posted,
        noted or Noted(),
        paused_until=paused_until,
        clock=clock or Clock(),
    )


@asynccontextmanager
async def delivering(
    store: ConsumerStorage, to: EndpointState, *, clock: Clock | None = None
) -> AsyncIterator[tuple[FeedConsumer, asyncio.Task[None]]]:
    """A feed consumer that runs while the block does and is stopped in order."""
    pair = FeedConsumer("acme/a", to, store, clock=clock or Clock())
    task = asyncio.create_task(pair.run())
    try:
        yield pair, task
    finally:
        pair.stop()
        await asyncio.wait([task])
