"""A first reading asks for no snapshot: what becomes of it where the store is changed behind its back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from redis.asyncio import Redis

from poller.errors import Fenced, Stale, StoreError
from poller.lifecycle import at_once
from poller.source.feed import RoundMode
from poller.source.paging import decode_page
from poller.source.writer import RoundWriter
from tests.harness.clock import StubClock
from tests.source.round_sides import FEED, NOON
from tests.source.test_writer_pages import gone
from tests.store.test_feed import KEYS, begun, events, opened_by, write

Change = Callable[[Redis], Awaitable[object]]


async def all_gone(client: Redis) -> None:
    await client.delete(KEYS.lease, KEYS.state, KEYS.snapshots, KEYS.events, KEYS.dictionaries)


async def gone_back(client: Redis) -> None:
    """As after a failover to a replica that had nothing of the first page."""
    await client.delete(KEYS.snapshots, KEYS.events, KEYS.dictionaries)
    await client.hset(KEYS.state, mapping={"sequence": "0", "kept": "0 0 0"})
    await client.hdel(KEYS.state, "digest", "entry")


async def written_by_another(client: Redis) -> None:
    await client.delete(KEYS.lease)
    await write(opened_by(client)("another"), [b'{"id":"c","x":1}'])


async def without_snapshots(client: Redis) -> None:
    await client.delete(KEYS.snapshots)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (all_gone, Fenced),
        (gone_back, Stale),
        (written_by_another, Fenced),
        (without_snapshots, Stale),
    ],
    ids=["flushed", "gone back", "written by another", "snapshots lost"],
)
async def test_nothing_is_published_on_what_is_not_there_any_more(
    store_client: Redis, change: Change, error: type[StoreError]
) -> None:
    """Whatever has happened to the store between two pages, the second one is not committed."""
    store = opened_by(store_client)("own")
    writer = RoundWriter(FEED, store, await begun(store), gone, StubClock(now=lambda: NOON))

    async def page(body: bytes) -> None:
        await writer.page(at_once(decode_page(body)), mode=RoundMode.BASELINE, path="/contractTypes", seen=None)

    await page(b'{"results":[{"id":"a"},{"id":"b"}],"pageToken":"2"}')
    assert [one["subject"] for one in await events(store_client)] == ["a", "b"]
    await change(store_client)
    before = await events(store_client)
    with pytest.raises(error):
        await page(b'{"results":[{"id":"c"},{"id":"d"}]}')
    assert await events(store_client) == before
