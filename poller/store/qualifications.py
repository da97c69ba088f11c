"""The qualifications that a source's feeds have named, for the feeds that read one listing for each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from redis.asyncio import Redis

from poller.store.connection import translated
from poller.store.keys import FeedKeys


async def seen_qualifications(client: Redis, feeds: Iterable[FeedKeys]) -> list[str]:
    """Their ids, those whose records changed last first; each once."""
    latest: dict[str, float] = {}
    for keys in feeds:
        with translated(client):
            answer = await client.zrange(keys.qualifications, 0, -1, withscores=True)
        for member, score in cast("list[tuple[bytes, float]]", answer):
            name = member.decode()
            latest[name] = max(score, latest.get(name, 0.0))
    return sorted(latest, key=lambda name: -latest[name])
