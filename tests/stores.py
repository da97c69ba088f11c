"""The stores that tests run on: one of each kind for the whole run, started on demand, emptied for each test.

``--store KIND`` runs all tests on that kind only, ``--resp 3`` with that version of RESP. By default a test runs on
Valkey, and tests of the store on all kinds. The simulated store is that of :mod:`tests.simulation`; passing these tests
is what makes it trustworthy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, Literal, cast, get_args
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from redis import Redis, RedisCluster
from redis.asyncio import Redis as Client
from redis.cluster import ClusterNode
from redis.sentinel import Sentinel

from poller.redis.client import servers
from poller.redis.url import CLUSTER, SENTINEL, kind_of, place_of
from tests.harness.cluster import Cluster, cluster
from tests.harness.sentinels import Sentinels, sentinels
from tests.programs import program
from tests.servers import Kind, running

Store = Literal["valkey", "redis", "sentinel", "cluster", "simulated"]
KINDS: Final[tuple[Store, ...]] = get_args(Store)
SINGLE: Final[tuple[Store, ...]] = ("valkey", "redis")
SEVERAL: Final[tuple[Store, ...]] = ("sentinel", "cluster")


class Stores:
    """The stores of one run."""

    def __init__(self, stack: ExitStack, directory: Callable[[str], Path], protocol: str | None) -> None:
        """Take the stack that ends them, a function that makes directories, and the version of RESP for URLs."""
        self._stack = stack
        self._directory = directory
        self._query = f"?protocol={protocol}" if protocol else ""
        self._single: dict[str, str] = {}
        self._sentinels: Sentinels | None = None
        self._cluster: Cluster | None = None

    def emptied(self, kind: Store) -> str:
        """The URL of an empty store without scripts. Skips if there is no such server."""
        if kind == "sentinel":
            self.sentinels.empty()
            return self.sentinels.url + self._query
        if kind == "cluster":
            self.cluster.empty()
            return self.cluster.url + self._query
        if kind not in self._single:
            self._single[kind] = self._started(kind)
        with Redis.from_url(self._single[kind]) as client:
            client.flushall()
            client.script_flush()
        return self._single[kind] + self._query

    def _started(self, kind: Store) -> str:
        directory = self._directory(kind[0])
        if kind == "simulated":
            return self._stack.enter_context(program("tests.simulation.store_process", directory / "s"))
        return self._stack.enter_context(running(cast("Kind", kind), directory, appendfsync="everysec")).url

    @property
    def sentinels(self) -> Sentinels:
        """Three Sentinels, a primary, a replica."""
        if self._sentinels is None:
            self._sentinels = self._stack.enter_context(sentinels(self._directory("s") / "s"))
        return self._sentinels

    @property
    def cluster(self) -> Cluster:
        """Three primaries and their replicas."""
        if self._cluster is None:
            self._cluster = self._stack.enter_context(cluster(self._directory("c") / "c"))
        return self._cluster


@contextmanager
def looking(url: str) -> Iterator[Any]:
    """The blocking redis-py client of a store of any kind, for a test that reads or prepares data."""
    client: Any
    if kind_of(url) == SENTINEL:
        place = place_of(url, {})
        watching = Sentinel(place.hosts, protocol=2)  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
        client = watching.master_for(place.service, **place.arguments)  # type: ignore[no-untyped-call]  # as above
    elif kind_of(url) == CLUSTER:
        place = place_of(url, {})
        nodes = [ClusterNode(*one) for one in place.hosts]  # type: ignore[no-untyped-call]  # as above
        client = RedisCluster(startup_nodes=nodes, **place.arguments)
    else:
        client = Redis.from_url(url, protocol=int(dict(parse_qsl(urlsplit(url).query)).get("protocol", 2)))
    try:
        yield client
    finally:
        client.close()


def only_one_server(kind: Store) -> None:
    """Skip a test that needs a single server."""
    if kind in SEVERAL:
        pytest.skip(f"needs a single server, which {kind} is not")


def with_options(url: str, **options: str) -> str:
    """The URL with further options."""
    return f"{url}{'&' if '?' in url else '?'}{urlencode(options)}"


async def flushed(client: Client) -> None:
    """Delete all data of a store, on each of its servers."""
    for one in await servers(client):
        await one.flushall()


async def clients_of(client: Client, state: Literal["connected", "blocked"]) -> int:
    """How many clients of one server are in this state."""
    return int((await client.info("clients"))[f"{state}_clients"])


async def all_keys(client: Client) -> set[bytes]:
    """The keys of a store, on all of its servers."""
    return {key for one in await servers(client) for key in cast("list[bytes]", await one.keys())}
