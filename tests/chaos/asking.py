"""Asking a store that is killed, moved and replaced: whoever only looks asks again until there is an answer."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

from redis.exceptions import RedisError

from poller.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")
PATIENCE = 60.0
"""Seconds; the machine may be busy with much else."""

_BETWEEN = 0.05


async def answered(ask: Callable[[], Awaitable[T]]) -> T:
    """What is answered in the end; what is asked must do no harm when it is done twice."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return await ask()
        except (RedisError, StoreError, OSError):
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(_BETWEEN)
