"""Waiting for conditions, never for time alone.

Whoever waits is woken, or looks again, or gives up and says for what. Where something wakes the waiter (an event, a
condition, a line of a log), wait for that, within :func:`patience`. What tells nobody, such as a store or another
process, is looked at again and again by :func:`until`, the one place that does so; by :func:`blocking_until` where
there is no loop: in fixtures and threads.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

T = TypeVar("T")

PATIENCE = 20.0
"""Seconds on a machine that has nothing else to do; nothing in a scene takes as long unless something is wrong."""

_MOST_STRAIN = 8.0

_BETWEEN_LOOKS = 0.005


def strain() -> float:
    """How many times longer things take here than on a quiet machine: runnable threads for each CPU, from 1 to 8.

    The average of the last minute knows lasting load, the number of threads that want to run right now a new one.
    """
    cpus = len(os.sched_getaffinity(0))
    average, _, _, threads, _ = Path("/proc/loadavg").read_text("ascii").split()
    return min(max(1.0, float(average) / cpus, int(threads.partition("/")[0]) / cpus), _MOST_STRAIN)


@asynccontextmanager
async def patience(what: str, seconds: float = PATIENCE) -> AsyncIterator[None]:
    """Fail with ``what`` if the block takes longer, on a quiet machine."""
    try:
        async with asyncio.timeout(seconds * strain()):
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
        look: asked again and again.
        what: it is waited for.
        seconds: how long on a quiet machine; None: the look itself gives up.
        every: seconds between two looks.
        despite: errors of a look that mean: not yet.
    """
    failed: Exception | None = None
    try:
        async with asyncio.timeout(None if seconds is None else seconds * strain()):
            while True:
                try:
                    found = look()
                    seen = await found if inspect.isawaitable(found) else found
                    if seen:
                        return seen
                except despite as error:
                    failed = error
                await asyncio.sleep(every)
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
    """As :func:`until`, of what blocks."""
    failed: Exception | None = None
    deadline = time.monotonic() + seconds * strain()
    while True:
        try:
            if seen := look():
                return seen
        except despite as error:
            failed = error
        if time.monotonic() > deadline:
            raise AssertionError(_in_vain(what, seconds)) from failed
        time.sleep(every)


async def turns(count: int = 1) -> None:
    """Let all that is ready run, so many times: where nothing is to happen, and for clocks that are made up."""
    for _ in range(count):
        await asyncio.sleep(0)


def _in_vain(what: str, seconds: float | None) -> str:
    return f"waited {seconds or 0:g} s for {what}"
