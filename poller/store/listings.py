"""Listings as they are kept: one field of the feed's hash for each, by its qualification.

What cannot be read counts as never read: that costs a reading, not a record.
"""

from __future__ import annotations

from typing import Final, cast

import msgspec
from redis.asyncio import Redis

from poller.changes.listings import Listing
from poller.store.connection import translated

_LISTED_AT_ONCE: Final = 500

_decode: Final = msgspec.msgpack.Decoder(Listing).decode
encode_listing: Final = msgspec.msgpack.Encoder().encode


async def kept_listings(client: Redis, key: str) -> dict[str, Listing]:
    """All listings of a feed, by qualification.

    Raises:
        StoreError: see :func:`~poller.store.connection.translated`.
    """
    listings: dict[str, Listing] = {}
    cursor = 0
    while True:
        with translated(client):
            cursor, found = await client.hscan(key, cursor, count=_LISTED_AT_ONCE)
        for name, value in cast("dict[bytes, bytes]", found).items():
            listings[name.decode()] = _listing(value)
        if not cursor:
            return listings


def _listing(value: bytes) -> Listing:
    try:
        return _decode(value)
    except msgspec.MsgspecError:
        return Listing()
