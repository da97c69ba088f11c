"""What the routes share: the configuration, the store once it has answered, the clock.

**Invariants**

- HTTP requests take no connection from rounds and deliveries: the service has a client of its own while the store is
  open, and followers of the streams another one.
- Long lists are made one after the other, for any client may ask for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Final

from redis.asyncio import Redis

from poller.clock import Clock
from poller.config.settings import Settings
from poller.errors import StoreUnavailable
from poller.redis.errors import let_in
from poller.store.keys import SubscriptionKeys
from poller.store.registry import Registry
from poller.store.session import OpenStore, command_client

_PATIENCE: Final = 2.0  # seconds for those who follow events to end


class AppContext:
    """Of one process."""

    def __init__(self, settings: Settings, environ: Mapping[str, str] = MappingProxyType({}), *, clock: Clock) -> None:
        """Begin without a store.

        Args:
            settings: the configuration.
            environ: where tokens may be.
            clock: the store's.
        """
        self.settings = settings
        self.environ = environ
        self.clock = clock
        self.closing = asyncio.Event()
        self.listing = asyncio.Lock()
        self._store: OpenStore | None = None
        self._users = 0
        self._unused = asyncio.Event()
        self._unused.set()

    @asynccontextmanager
    async def standing(self, store: OpenStore) -> AsyncIterator[None]:
        """Answer from this store while the block runs."""
        async with command_client(store.url, self.clock) as client:
            let_in(client)  # as the one that the store was opened with
            self._store = OpenStore(store.url, client, store.clock)
            try:
                yield
            finally:
                self._store = None
                self.closing.set()
                await self.clock.wait(self._unused, _PATIENCE)

    @asynccontextmanager
    async def in_use(self) -> AsyncIterator[OpenStore]:
        """The store, which is not closed before the block is left; that is to be soon once it is :attr:`closing`.

        Raises:
            StoreUnavailable: as :attr:`store`.
        """
        store = self.store
        self._users += 1
        self._unused.clear()
        try:
            yield store
        finally:
            self._users -= 1
            if not self._users:
                self._unused.set()

    @property
    def store(self) -> OpenStore:
        """The store, with the client of this service.

        Raises:
            StoreUnavailable: it has not answered yet, or is closed.
        """
        if self._store is None:
            raise StoreUnavailable("it has not answered yet" if not self.closing.is_set() else "it is closed")
        return self._store

    @property
    def client(self) -> Redis:
        """Of the store.

        Raises:
            StoreUnavailable: as :attr:`store`.
        """
        return self.store.client

    @property
    def registry(self) -> Registry:
        """The subscriptions.

        Raises:
            StoreUnavailable: as :attr:`store`.
        """
        return Registry(self.client, SubscriptionKeys.of(self.settings.redis.prefix))
