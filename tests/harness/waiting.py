"""Waiting for conditions, never for time alone.

Whoever waits is woken, or looks again, or gives up and says for what. Where something wakes the waiter (an event, a
condition, a line of a log), wait for that, within :func:`patience`. What tells nobody, such as a store or another
process, is looked at again and again by :func:`until`, the one place that does so; by :func:`blocking_until` where
there is no loop: in fixtures and threads.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

T = TypeVar("T")

PATIENCE = 20.0
"""Seconds; nothing in a scene takes as long unless something is wrong."""

_BETWEEN_LOOKS = 0.005


@asynccontextmanager
async def patience(what: str, seconds: float = PATIENCE) -> AsyncIterator[None]:
    """Fail with ``what`` if the block takes longer."""
    try:
        async with asyncio.timeout(seconds):
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
        seconds: how long; None: the look itself gives up.
        every: seconds between two looks.
        despite: errors of a look that mean: not yet.
    """
    failed: Exception | None = None
    try:
        async with asyncio.timeout(seconds):
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
    deadline = time.monotonic() + seconds
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
