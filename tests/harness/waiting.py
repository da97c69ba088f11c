"""Waiting for conditions, never for time alone.

Whoever waits is woken, or looks again, or gives up and says for what. Where something wakes the waiter (an event, a
condition, a line of a log), wait for that, within :func:`patience`. What tells nobody, such as a store or another
process, is looked at again and again by :func:`until`, the one place that does so.
"""

from __future__ import annotations

import asyncio
import inspect
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

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
        raise AssertionError(f"waited {seconds:g} s for {what}") from None


async def until(look: Callable[[], T | Awaitable[T]], what: str, *, seconds: float = PATIENCE) -> T:
    """What ``look`` answers, once that is true; fails with ``what`` if it takes longer."""
    async with patience(what, seconds):
        while True:
            found = look()
            seen: T = await found if inspect.isawaitable(found) else found
            if seen:
                return seen
            await asyncio.sleep(_BETWEEN_LOOKS)


async def turns(count: int = 1) -> None:
    """Let all that is ready run, so many times: where nothing is to happen, and for clocks that are made up."""
    for _ in range(count):
        await asyncio.sleep(0)
