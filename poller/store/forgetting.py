"""What a removed subscription leaves behind at its feeds, deleted."""

from __future__ import annotations

from typing import Final

from redis.asyncio import Redis

from poller.store.connection import translated
from poller.store.keys import FeedKeys, PairKeys, group_of

# KEYS: the feed's events, and the keys of the pair. ARGV: the group.
FORGET: Final = """
if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('XGROUP', 'DESTROY', KEYS[1], ARGV[1]) end
redis.call('DEL', unpack(KEYS, 2))
return 1
"""


async def forget(client: Redis, feed: FeedKeys, pair: PairKeys, subscription: str) -> None:
    """Delete what a removed subscription has at one feed: its group, and all that waits there or was given up.

    A process that still delivers for it is fenced, for its lease goes too.

    Raises:
        StoreError: see :func:`~poller.store.connection.translated`.
    """
    keys = [feed.events, pair.lease, pair.state, pair.parked, pair.letters, pair.letter_times]
    with translated(client):
        await client.eval(FORGET, len(keys), *keys, group_of(subscription))
