"""Telling whoever listens what became of the daemon's own duties: CloudEvents on the stream of operations."""

from __future__ import annotations

from typing import Final

from redis.asyncio import Redis

from poller.delivery.announcements import Announcement, announcement_bytes
from poller.store.keys import operations_key
from poller.store.stream import append

_KEPT: Final = 10_000  # announcements


async def announce(client: Redis, prefix: str, announcement: Announcement) -> None:
    """Add it to the stream ``{prefix}:{operations}:events``, which holds the latest ten thousand.

    Raises:
        StoreError: it may not be there.
    """
    await append(client, operations_key(prefix), announcement_bytes(announcement), most=_KEPT)
