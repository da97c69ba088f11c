"""The qualifications that a source's feeds have named, for the feeds that read one listing for each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from redis.asyncio import Redis

from poller.store.connection import translated
from poller.store.keys import FeedKeys


async def named_qualifications(client: Redis, feeds: Iterable[FeedKeys], since: int = 0) -> dict[str, int]:
    """Those that a change has named since then, and when each was last named: milliseconds of the store's clock.

    Raises:
        StoreError: see :func:`~poller.store.connection.translated`.
    """
    latest: dict[str, int] = {}
    for keys in feeds:
        with translated(client):
            answer = await client.zrangebyscore(keys.qualifications, since, "+inf", withscores=True)
        for member, score in cast("list[tuple[bytes, float]]", answer):
            name = member.decode()
            latest[name] = max(int(score), latest.get(name, 0))
    return latest
