"""Versions that are held back, as they are kept: one field of the feed's hash for each, by its record's key."""

from __future__ import annotations

from typing import Final, cast

import msgspec
from redis.asyncio import Redis

from poller.changes.held_versions import HeldVersion
from poller.store.connection import translated

_decode: Final = msgspec.msgpack.Decoder(HeldVersion).decode
encode_held: Final = msgspec.msgpack.Encoder().encode


async def kept_versions(client: Redis, key: str) -> dict[str, HeldVersion]:
    """All that a feed holds back, by record key. What another version wrote is held back as if it were seen first.

    Raises:
        StoreError: see :func:`~poller.store.connection.translated`.
    """
    with translated(client):
        found = cast("dict[bytes, bytes]", await client.hgetall(key))
    return {name.decode(): _held(value) for name, value in found.items()}


def _held(value: bytes) -> HeldVersion:
    try:
        return _decode(value)
    except msgspec.MsgspecError:
        return HeldVersion(b"")
