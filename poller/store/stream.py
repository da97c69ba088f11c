"""Reading event streams: everything from a place on, then what comes, across any number of feeds."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from datetime import timedelta
from typing import Final, cast

import msgspec
from redis.asyncio import Redis
from redis.typing import KeyT, StreamIdT

from poller.store.connection import translated

EARLIEST: Final = "0-0"
_ENTRIES: Final = 200

_Answer = list[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]]


class Entry(msgspec.Struct, frozen=True, gc=False):
    """An event's place in a stream: the stream's key, the entry's id, the event as JSON."""

    key: str
    id: str
    event: bytes


async def last_id(client: Redis, key: str) -> str:
    """The id of a stream's last entry; :data:`EARLIEST` where it has none. What follows it is new."""
    with translated(client):
        newest = cast("list[tuple[bytes, object]]", await client.xrevrange(key, count=1))
    return newest[0][0].decode() if newest else EARLIEST


async def follow(client: Redis, start: Mapping[str, str], *, block: timedelta | None) -> AsyncGenerator[list[Entry]]:
    """Entries after the given ids, as they are there and then as they come, some at a time.

    Args:
        client: one for blocking reads (:func:`poller.store.connection.blocking`), with room for ``block``.
        start: for each stream's key the id to start after.
        block: how long to wait for something new before an empty list is given out; None: end instead of waiting.

    Raises:
        StoreError: see :func:`~poller.store.connection.translated`. Start again after the last entries' ids.
    """
    after = cast("dict[KeyT, StreamIdT]", dict(start))
    milliseconds = None if block is None else int(block.total_seconds() * 1000)
    while True:
        with translated(client):
            answer = cast("_Answer", await client.xread(after, count=_ENTRIES, block=milliseconds))
        entries = [
            Entry(name.decode(), number.decode(), fields.get(b"data", b""))
            for name, found in answer
            for number, fields in found
        ]
        for entry in entries:
            after[entry.key] = entry.id
        if entries or block is not None:
            yield entries
        else:
            return


async def arrivals(client: Redis, keys: Iterable[str], *, block: timedelta) -> AsyncGenerator[set[str]]:
    """The keys of the streams in which something new has come, again and again; after ``block`` without, an empty set.

    All that is in a stream when its key is given out may be read at once; what comes later is told of later.

    Args:
        client: one for blocking reads (:func:`poller.store.connection.blocking`), with room for ``block``.
        keys: of the streams.
        block: how long to wait.

    Raises:
        StoreError: see :func:`~poller.store.connection.translated`. Start again, and read everything once.
    """
    after: dict[KeyT, StreamIdT] = {key: await last_id(client, key) for key in keys}
    milliseconds = int(block.total_seconds() * 1000)
    yield set(map(str, after))
    while True:
        with translated(client):
            answer = cast("_Answer", await client.xread(after, count=1, block=milliseconds))
        fresh = {name.decode() for name, _ in answer}
        for name in fresh:  # past all that is there: one look for a burst, however long it is
            after[name] = await last_id(client, name)
        yield fresh


async def append(client: Redis, key: str, event: bytes, *, most: int) -> None:
    """Add an event to a stream that is kept to about so many entries.

    Raises:
        StoreError: see :func:`~poller.store.connection.translated`.
    """
    with translated(client):
        await client.xadd(key, {"data": event}, maxlen=most, approximate=True)
