"""What a removed subscription leaves behind at its feeds, and what a dropped feed leaves behind, deleted."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Final

import msgspec
from redis.asyncio import Redis

from poller.store.connection import translated
from poller.store.keys import FeedKeys, PairKeys, group_of

# KEYS: the feed's events, and the keys of the pair. ARGV: the group.
FORGET: Final = """
if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('XGROUP', 'DESTROY', KEYS[1], ARGV[1]) end
redis.call('DEL', unpack(KEYS, 2))
return 1
"""


# KEYS: the feed's lease, then all of its others. ARGV: the nonce that proves the lease. Answers 1 where it was ours.
FORGET_FEED: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
for _, key in ipairs(KEYS) do redis.call('UNLINK', key) end
return 1
"""


async def forget_feed(client: Redis, feed: FeedKeys, pairs: Iterable[PairKeys], *, nonce: str) -> bool:
    """Delete everything that is kept of a feed, its lease too; False: that is not ours, and nothing was deleted.

    Raises:
        StoreError: see :func:`~poller.store.connection.translated`.
    """
    others = [key for key in msgspec.structs.astuple(feed) if key != feed.lease]
    keys = [feed.lease, *others, *chain.from_iterable(map(msgspec.structs.astuple, pairs))]
    with translated(client):
        return bool(await client.eval(FORGET_FEED, len(keys), *keys, nonce))


async def forget(client: Redis, feed: FeedKeys, pair: PairKeys, subscription: str) -> None:
    """Delete what a removed subscription has at one feed: its group, and all that waits there or was given up.

    A process that still delivers for it is fenced, for its lease goes too.

    Raises:
        StoreError: see :func:`~poller.store.connection.translated`.
    """
    keys = [feed.events, pair.lease, pair.state, pair.parked, pair.letters, pair.letter_times]
    with translated(client):
        await client.eval(FORGET, len(keys), *keys, group_of(subscription))
