"""Queries a store that is killed, moved and replaced: repeats a query until it is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from redis.exceptions import RedisError

from poller.errors import StoreError
from tests.harness.waiting import Deadline, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")
PATIENCE = 60.0
"""Seconds on a quiet machine."""

_BETWEEN = 0.05


async def answered(ask: Callable[[], Awaitable[T]]) -> T:
    """The answer to a query that is repeated until the store answers; the query must be idempotent."""
    deadline = Deadline(PATIENCE)

    async def asked() -> tuple[T] | None:
        try:
            return (await ask(),)
        except (RedisError, StoreError, OSError):
            if deadline.left <= 0:
                raise
        return None

    (answer,) = await until(asked, "an answer", seconds=None, every=_BETWEEN)
    return answer
