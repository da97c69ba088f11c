"""The state that all routes share: configuration, store, clock.

**Invariants**

- HTTP requests use no connection of rounds and deliveries: the service has a client of its own while the store is open,
  and readers of the streams have another one.
- Long lists are made one after the other, because any client may request them.
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

_PATIENCE: Final = 2.0  # seconds for readers of events to end


class AppContext:
    """The shared state of one process."""

    def __init__(self, settings: Settings, environ: Mapping[str, str] = MappingProxyType({}), *, clock: Clock) -> None:
        """Begin without a store.

        Args:
            settings: the configuration.
            environ: may hold tokens.
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
        """Use this store while the block runs."""
        async with command_client(store.url, self.clock) as client:
            let_in(client)  # like the client that the store was opened with
            self._store = OpenStore(store.url, client, store.clock)
            try:
                yield
            finally:
                self._store = None
                self.closing.set()
                await self.clock.wait(self._unused, _PATIENCE)

    @asynccontextmanager
    async def in_use(self) -> AsyncIterator[OpenStore]:
        """The store, which stays open during the block. Leave the block soon once :attr:`closing` is set.

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
            StoreUnavailable: the store has not answered yet, or is closed.
        """
        if self._store is None:
            raise StoreUnavailable("it has not answered yet" if not self.closing.is_set() else "it is closed")
        return self._store

    @property
    def client(self) -> Redis:
        """The client of the store.

        Raises:
            StoreUnavailable: as :attr:`store`.
        """
        return self.store.client

    @property
    def registry(self) -> Registry:
        """The registry of subscriptions.

        Raises:
            StoreUnavailable: as :attr:`store`.
        """
        return Registry(self.client, SubscriptionKeys.of(self.settings.redis.prefix))
