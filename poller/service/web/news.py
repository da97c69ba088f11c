"""Which streams have something new, found out once for all who follow them over HTTP.

Law: whoever asks what is new since a mark is told each stream in which something has come since then, also across an
absence of the store. One connection looks, and only while somebody follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

import structlog

from poller.errors import StoreError, StoreUnavailable
from poller.stopping import ended, unless
from poller.store.connection import blocking
from poller.store.stream import arrivals
from poller.store.translation import let_in

BLOCK: Final = timedelta(seconds=2)
_NEWS_AGAIN: Final = 0.5  # seconds before a store that is away is asked again

_log = structlog.get_logger("poller.web")


class News:
    """What has come in the streams, in turns that are counted."""

    def __init__(
        self,
        keys: Sequence[str],
        *,
        block: timedelta = BLOCK,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Take the streams' keys, how long the store may wait for something new, and what waits for so many seconds."""
        self._keys = keys
        self._block = block
        self._sleep = sleep
        self._turn = 0
        self._changed: dict[str, int] = {}
        self._fresh = asyncio.Event()
        self._followers = 0
        self._looking: asyncio.Task[None] | None = None
        self._failing: str | None = None

    @asynccontextmanager
    async def followed(self, url: str) -> AsyncIterator[None]:
        """Look at the streams of this store while the block runs, or longer where others follow."""
        self._followers += 1
        if self._looking is None:
            self._looking = asyncio.create_task(self._look(url), name="news for server-sent events")
        try:
            yield
        finally:
            self._followers -= 1
            if not self._followers and self._looking is not None:
                looking, self._looking = self._looking, None  # one who comes meanwhile begins anew
                await ended(looking)

    @property
    def mark(self) -> int:
        """What came until now came before this."""
        return self._turn

    def since(self, mark: int, keys: Collection[str]) -> list[str]:
        """Those of these streams in which something has come after the mark."""
        return [key for key in keys if self._changed.get(key, 0) > mark]

    async def beyond(self, mark: int, seconds: float) -> None:
        """Wait until something has come after the mark, wherever that is; at most so long."""
        if self._turn == mark:
            await unless(self._fresh, seconds)

    async def _look(self, url: str) -> None:
        while True:
            client = blocking(url, block=self._block)
            let_in(client)  # as the one that the store was opened with
            try:
                async for fresh in arrivals(client, self._keys, block=self._block):
                    self._failing = None
                    if fresh:
                        self._tell(fresh)
            except StoreUnavailable:
                pass  # whoever follows tells it
            except StoreError as error:
                if str(error) != self._failing:
                    self._failing = str(error)
                    _log.warning("streams cannot be followed", error=self._failing)
            finally:
                await client.aclose()
            await self._sleep(_NEWS_AGAIN)

    def _tell(self, fresh: set[str]) -> None:
        self._turn += 1
        self._changed |= dict.fromkeys(fresh, self._turn)
        before, self._fresh = self._fresh, asyncio.Event()
        before.set()
