"""Raw limits: what the same server, client libraries and data allow when nothing is checked or compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import cast

import msgspec
import redis as blocking_redis

from poller.source.client import ApiClient
from poller.source.paging import ListingReader, ListQuery
from tests.bench.scene import RESOURCE, Bench

_BATCH = 250


class Written(msgspec.Struct, frozen=True):
    """What a first reading left in the store: each record's field and snapshot, and its event."""

    snapshots: Sequence[tuple[bytes, bytes]]
    events: Sequence[bytes]


async def written(bench: Bench) -> Written:
    """Read it back."""
    snapshots = [pair async for pair in bench.redis.hscan_iter(bench.keys.snapshots, count=1000)]
    entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", await bench.redis.xrange(bench.keys.events))
    return Written(snapshots, [fields[b"data"] for _, fields in entries])


def pipelined_writes(url: str, data: Written) -> float:
    """Records a second: a bare redis-py pipeline with hiredis, the same HSET and XADD, in batches of 250."""
    pairs = list(zip(data.snapshots, data.events, strict=False))
    with blocking_redis.Redis.from_url(url) as client:
        client.delete("raw:h", "raw:s")

        def write() -> None:
            for start in range(0, len(pairs), _BATCH):
                pipeline = client.pipeline(transaction=False)
                for (field, value), event in pairs[start : start + _BATCH]:
                    pipeline.hset("raw:h", field, value)
                    pipeline.xadd("raw:s", {"data": event})
                pipeline.execute()

        speed = per_second(len(pairs), write)
        client.delete("raw:h", "raw:s")
        return speed


def pipelined_reads(url: str, bench: Bench, data: Written) -> float:
    """Records a second: HMGET of the same snapshots in batches of 250, answers thrown away."""
    fields = [field for field, _ in data.snapshots]
    with blocking_redis.Redis.from_url(url) as client:

        def read() -> None:
            for start in range(0, len(fields), _BATCH):
                client.hmget(bench.keys.snapshots, fields[start : start + _BATCH])

        return per_second(len(fields), read)


async def bare_fetch(api: ApiClient, query: ListQuery, path: str = RESOURCE.path) -> tuple[float, list[bytes]]:
    """Records a second when pages are fetched one after the other and only split; and the bodies."""
    split = msgspec.json.Decoder(_Listing).decode
    bodies, records, begun = [], 0, time.perf_counter()
    page_token: str | None = None
    drain = ListingReader(query)
    while True:
        params = drain.first_request() if page_token is None else query.further(None, page_token)
        body = await api.get(path, params)
        listing = split(body)
        bodies.append(body)
        records += len(listing.results)
        page_token = listing.page_token
        if not page_token:
            return records / (time.perf_counter() - begun), bodies


async def bare_listings(api: ApiClient, paths: Sequence[str], query: ListQuery) -> float:
    """Records a second when listings are fetched one after the other and only split."""
    split = msgspec.json.Decoder(_Listing).decode
    records, begun = 0, time.perf_counter()
    for path in paths:
        records += len(split(await api.get(path, query.first(None))).results)
    return records / (time.perf_counter() - begun)


def bare_split(bodies: Sequence[bytes]) -> float:
    """Records a second when JSON is split into records and nothing else."""
    split = msgspec.json.Decoder(_Listing).decode
    records = sum(len(split(body).results) for body in bodies)
    return per_second(records, lambda: [split(body) for body in bodies])


class _Listing(msgspec.Struct, rename="camel"):
    results: list[msgspec.Raw]
    page_token: str | None = None


def per_second(count: int, work: Callable[[], object]) -> float:
    """How often a second something happened that happens ``count`` times in ``work``."""
    begun = time.perf_counter()
    work()
    return count / (time.perf_counter() - begun)
