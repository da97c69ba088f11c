"""Asking a store that is killed, moved and replaced: whoever only looks asks again until there is an answer."""

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
    """What is answered in the end; what is asked must do no harm when it is done twice, and takes the time it takes."""
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
