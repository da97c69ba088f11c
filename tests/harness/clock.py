"""Clocks for tests: one that a test moves by hand, and the process's own with parts replaced."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta

from poller.clock import Clock
from poller.store.clock import StoreClock

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def store_clock() -> StoreClock:
    """A store clock that has not been read yet."""
    return StoreClock(process=Clock())


class FakeClock(Clock):
    """A clock that moves only when a test moves it; sleep moves it and returns.

    Attributes:
        slept: the seconds of every sleep, in order.
    """

    def __init__(self, now: datetime = NOON, *, monotonic: float = 0.0, seed: int = 0) -> None:
        """Start at these moments."""
        self.random = random.Random(seed)
        self.slept: list[float] = []
        self._now = now
        self._monotonic = monotonic

    def now(self) -> datetime:
        """The wall clock time it is set to."""
        return self._now

    def monotonic(self) -> float:
        """The monotonic time it is set to, in seconds."""
        return self._monotonic

    def move(self, seconds: float) -> None:
        """Let this much time pass."""
        self._now += timedelta(seconds=seconds)
        self._monotonic += seconds

    def turn(self, by: timedelta) -> None:
        """Move the wall clock forward or back without letting time pass."""
        self._now += by

    async def sleep(self, seconds: float) -> None:
        """Let the time pass and other tasks run."""
        self.slept.append(seconds)
        self.move(seconds)
        await asyncio.sleep(0)

    def aligned(self, seconds: float) -> float:
        """As many seconds as are given."""
        return seconds

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        """Let the time pass unless the event is set."""
        if not event.is_set():
            await self.sleep(seconds)
        return event.is_set()


class _Drawn(random.Random):
    """Random bytes that a test supplies."""

    def __init__(self, draws: Iterator[str]) -> None:
        super().__init__(0)
        self._draws = draws

    def randbytes(self, n: int) -> bytes:  # noqa: ARG002 -- as many as the test says
        return bytes.fromhex(next(self._draws))


class StubClock(Clock):
    """The process's own clock, with the parts replaced that a test supplies."""

    def __init__(
        self,
        *,
        now: Callable[[], datetime] | None = None,
        monotonic: Callable[[], float] | None = None,
        sleep: Callable[[float], Awaitable[object]] | None = None,
        wait: Callable[[asyncio.Event, float], Awaitable[object]] | None = None,
        draws: Iterator[str] | None = None,
    ) -> None:
        """Take the parts; ``draws`` are random bytes in hexadecimal digits, one value for each draw."""
        super().__init__()
        if draws is not None:
            self.random = _Drawn(draws)
        self._is_timed = sleep is None and wait is None
        self._now = now or super().now
        self._monotonic = monotonic or super().monotonic
        self._sleep = sleep or super().sleep
        self._wait = wait or super().wait

    def now(self) -> datetime:
        """By the supplied part."""
        return self._now()

    def monotonic(self) -> float:
        """By the supplied part."""
        return self._monotonic()

    def aligned(self, seconds: float) -> float:
        """As many seconds as are given, where a part is supplied that waits."""
        return super().aligned(seconds) if self._is_timed else seconds

    async def sleep(self, seconds: float) -> None:
        """By the supplied part."""
        await self._sleep(seconds)

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        """By the supplied part."""
        await self._wait(event, seconds)
        return event.is_set()
