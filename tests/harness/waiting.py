"""Waits for conditions, never for time alone.

A waiter is woken, or checks again, or gives up and says what it waited for. Where something can wake it (an event, a
condition, a line of a log), wait for that within :func:`patience`. A store or another process, which cannot, is checked
repeatedly by :func:`until`, the one place that does so; by :func:`blocking_until` where there is no loop: in fixtures
and threads.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import time
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

T = TypeVar("T")

PATIENCE = 20.0
"""Seconds on a quiet machine; nothing in a scene takes this long unless something is wrong."""

_MOST_STRAIN = 16.0

_BETWEEN_LOOKS = 0.005
_LONGEST_PAUSE = 0.05


def strain() -> float:
    """How many times longer things take here than on a quiet machine: runnable threads for each CPU, from 1 to 16.

    The average of the last minute reflects lasting load, the number of runnable threads a new one.
    """
    cpus = len(os.sched_getaffinity(0))
    average, _, _, threads, _ = Path("/proc/loadavg").read_text("ascii").split()
    return min(max(1.0, float(average) / cpus, int(threads.partition("/")[0]) / cpus), _MOST_STRAIN)


async def unless(event: asyncio.Event, seconds: float) -> bool:
    """Wait for the event, at most this long; whether it was set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


def lasting(seconds: float) -> str:
    """A short lifetime for leases, as configurations write it; long enough for a busy machine to renew them in time."""
    return f"{1000 * seconds * strain():.0f}ms"


class Deadline:
    """The end of a wait: a number of seconds on a quiet machine, later on a busy one."""

    def __init__(self, seconds: float = PATIENCE, load: Callable[[], float] = strain) -> None:
        """Start the wait. ``load``: how many times longer things take now."""
        self._seconds = seconds
        self._began = time.monotonic()
        self._load = load
        self._strain = load()

    @property
    def left(self) -> float:
        """Seconds until the deadline; 0 or less once it has passed."""
        elapsed = time.monotonic() - self._began
        if elapsed >= self._seconds * self._strain:
            self._strain = max(self._strain, self._load())
        return self._seconds * self._strain - elapsed


@asynccontextmanager
async def limited(seconds: float = PATIENCE) -> AsyncIterator[None]:
    """Like :func:`asyncio.timeout`, with a :class:`Deadline`."""
    loop, deadline = asyncio.get_running_loop(), Deadline(seconds)
    async with asyncio.timeout(None) as limit:

        def look() -> None:
            if (left := deadline.left) <= 0:
                limit.reschedule(loop.time())
            else:
                handles[:] = [loop.call_later(left, look)]

        handles = [loop.call_later(deadline.left, look)]
        try:
            yield
        finally:
            handles[0].cancel()


async def within(awaited: Awaitable[T], seconds: float = PATIENCE) -> T:
    """Like :func:`asyncio.wait_for`, with a :class:`Deadline`."""
    async with limited(seconds):
        return await awaited


@asynccontextmanager
async def patience(what: str, seconds: float = PATIENCE) -> AsyncIterator[None]:
    """Fail with ``what`` if the block takes longer than ``seconds`` on a quiet machine."""
    try:
        async with limited(seconds):
            yield
    except TimeoutError:
        raise AssertionError(_in_vain(what, seconds)) from None


@overload
async def until(
    look: Callable[[], Awaitable[T | None]],
    what: str,
    *,
    seconds: float | None = ...,
    every: float = ...,
    despite: tuple[type[Exception], ...] = ...,
) -> T: ...


@overload
async def until(
    look: Callable[[], T | None],
    what: str,
    *,
    seconds: float | None = ...,
    every: float = ...,
    despite: tuple[type[Exception], ...] = ...,
) -> T: ...


async def until(
    look: Callable[[], Any],
    what: str,
    *,
    seconds: float | None = PATIENCE,
    every: float = _BETWEEN_LOOKS,
    despite: tuple[type[Exception], ...] = (),
) -> Any:
    """What ``look`` answers, once that is true; fails with ``what`` if it takes longer.

    Args:
        look: the condition, checked repeatedly.
        what: the thing waited for, for the message.
        seconds: how long on a quiet machine; None: without a limit.
        every: seconds between two checks.
        despite: errors of a check that mean "not yet".
    """
    failed: Exception | None = None
    began = time.monotonic()
    try:
        async with limited(math.inf if seconds is None else seconds):
            while True:
                try:
                    found = look()
                    seen = await found if inspect.isawaitable(found) else found
                    if seen:
                        return seen
                except despite as error:
                    failed = error
                await asyncio.sleep(_pause(every, began))
    except TimeoutError:
        raise AssertionError(_in_vain(what, seconds)) from failed


def blocking_until(
    look: Callable[[], T],
    what: str,
    *,
    seconds: float = PATIENCE,
    every: float = _BETWEEN_LOOKS,
    despite: tuple[type[Exception], ...] = (),
) -> T:
    """Like :func:`until`, for blocking code."""
    failed: Exception | None = None
    began, deadline = time.monotonic(), Deadline(seconds)
    while True:
        try:
            if seen := look():
                return seen
        except despite as error:
            failed = error
        if deadline.left <= 0:
            raise AssertionError(_in_vain(what, seconds)) from failed
        time.sleep(_pause(every, began))


async def turns(count: int = 1) -> None:
    """Let all ready tasks run, ``count`` times: for tests that nothing happens, and for fake clocks."""
    for _ in range(count):
        await asyncio.sleep(0)


def _pause(every: float, began: float) -> float:
    """Seconds until the next check: a tenth of the time waited so far, within bounds.

    Checks cost CPU time, which delays what is waited for.
    """
    return max(every, min((time.monotonic() - began) / 10, _LONGEST_PAUSE)) if every else 0.0


def _in_vain(what: str, seconds: float | None) -> str:
    return f"waited {seconds or 0:g} s for {what}"
