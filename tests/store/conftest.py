"""The stores that the store's tests run on: all kinds, unless one is chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
from fakeredis import FakeAsyncRedis, FakeServer

from poller.store.connection import commands
from tests.stores import only_one_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

    from tests.stores import Store, Stores


@pytest.fixture
def server(single_kind: Store, stores: Stores) -> str:
    """The URL of a real, empty server: Valkey, then Redis. Skips where another kind of store is chosen."""
    only_one_server(single_kind)
    return stores.emptied(single_kind)


@pytest.fixture
def any_store(store_kind: Store, stores: Stores) -> str:
    """The URL of a real, empty store, of each kind."""
    return stores.emptied(store_kind)


@pytest.fixture
async def fake() -> AsyncIterator[Redis]:
    """An empty fakeredis."""
    client = FakeAsyncRedis(server=FakeServer(version=(7,)))
    yield client
    await client.aclose()


@pytest.fixture
async def store_client(client_kind: str, stores: Stores) -> AsyncIterator[Redis]:
    """A client of an empty store, ready for scripts: fakeredis, then each kind."""
    if client_kind == "fakeredis":
        client: Redis = FakeAsyncRedis(server=FakeServer(version=(7,)))
    else:
        client = commands(stores.emptied(cast("Store", client_kind)))
    yield client
    await client.aclose()
