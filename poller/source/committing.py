"""Commits one after the other, each on its way while the next is being planned.

Law: they are written in the order in which they were given, and none after one that failed. Planning takes this
process' time, committing the store's: neither waits for the other, unless it is two commits ahead.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from poller.stopping import finished

_LAST_WAIT: Final = 4.0  # seconds; a little more than a commit takes for itself
T = TypeVar("T")


@asynccontextmanager
async def in_order(commit: Callable[[T], Awaitable[None]]) -> AsyncGenerator[Callable[[T], Awaitable[None]]]:
    """Gives a function that takes what ``commit`` is to write next; leaving the block waits until all are written.

    Whatever ``commit`` raises is raised by the next call of that function or at the end of the block. Left by an error
    or cancelled, the block drops what is only waiting and cancels what is on its way (which finishes it, see
    :meth:`poller.store.feed.FeedStore.commit`).
    """
    waiting: asyncio.Queue[T | None] = asyncio.Queue(maxsize=1)

    async def write() -> None:
        while (planned := await waiting.get()) is not None:
            await commit(planned)

    writing = asyncio.create_task(write())

    async def put(planned: T | None) -> None:
        putting = asyncio.create_task(waiting.put(planned))
        try:
            await asyncio.wait({putting, writing}, return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                writing.result()
        finally:
            putting.cancel()

    try:
        yield put
        await put(None)
        await writing
    finally:
        writing.cancel()  # reaches the commit that is on its way, which is finished, or the wait for the next
        await finished(writing, within=_LAST_WAIT)
