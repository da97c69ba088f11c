"""The servers that the store's tests run on: one process of each kind for the whole run, emptied before each test."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

import pytest
from fakeredis import FakeAsyncRedis, FakeServer
from redis import Redis as BlockingRedis

from poller.store.connection import commands
from tests.servers import KINDS, Kind, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from redis.asyncio import Redis


class Started(Protocol):
    """The URL of the run's server of a kind, emptied. Skips where there is no such server."""

    def __call__(self, kind: Kind) -> str: ...


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    urls: dict[Kind, str] = {}
    with ExitStack() as stack:

        def emptied(kind: Kind) -> str:
            if kind not in urls:
                directory = tmp_path_factory.mktemp(kind)
                urls[kind] = stack.enter_context(running(kind, directory, appendfsync="everysec")).url
            with BlockingRedis.from_url(urls[kind]) as client:
                client.flushall()
                client.script_flush()
            return urls[kind]

        yield emptied


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, started: Started) -> str:
    """The URL of a real, empty server: Valkey, then Redis."""
    return started(request.param)


@pytest.fixture
async def fake() -> AsyncIterator[Redis]:
    """An empty fakeredis."""
    client = FakeAsyncRedis(server=FakeServer(version=(7,)))
    yield client
    await client.aclose()


@pytest.fixture(params=["fakeredis", *KINDS])
async def store_client(request: pytest.FixtureRequest, started: Started) -> AsyncIterator[Redis]:
    """A client of an empty store, ready for scripts: fakeredis, Valkey, Redis."""
    if request.param == "fakeredis":
        client: Redis = FakeAsyncRedis(server=FakeServer(version=(7,)))
    else:
        client = commands(started(request.param))
    yield client
    await client.aclose()
