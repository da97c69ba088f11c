"""Trimming an event stream: what is known of it, asked; what may go, removed.

How far is :mod:`poller.store.trimming`'s to say.

A stream is trimmed by whole nodes of its list (``~``): some entries more stay than have to, and it costs next to
nothing. What an entry was needed for is looked at before; a consumer group that is made between the look and the cut
begins where the stream then begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from redis.asyncio import Redis

from poller.store.connection import translated
from poller.store.keys import PairKeys
from poller.store.replays import replay_of
from poller.store.trimming import Cut, Facts, Place

_BEYOND: Final[Place] = (2**64 - 1, 2**64 - 1)


async def facts_of(client: Redis, events: str, pairs: Mapping[str, PairKeys]) -> Facts | None:
    """What is known of a stream; None where there is none.

    Args:
        client: of the store.
        events: the stream's key.
        pairs: the keys of each subscription to it, by its group.

    Raises:
        StoreError: see :func:`~poller.store.connection.translated`.
    """
    with translated(client):
        asking = client.pipeline(transaction=False)
        asking.exists(events)
        asking.memory_usage(events)
        exists, size = await asking.execute()
        if not exists:
            return None
        stream: Any = await client.xinfo_stream(events)
        groups: Any = await client.xinfo_groups(events)
        needed = {group["name"].decode(): await _needed(client, events, group) for group in groups}
        for name, keys in pairs.items():
            parked = cast("Iterable[bytes]", await client.hkeys(keys.parked))
            needed[name] = min([needed.get(name, _BEYOND), *(place_of(entry) for entry in parked)])
            if replay := await replay_of(client, keys):
                milliseconds, number = place_of(replay.after.encode())
                needed[name] = min(needed[name], (milliseconds, number + 1))
    first = stream["first-entry"]
    return Facts(int(stream["length"]), int(size or 0), place_of(first[0]) if first else None, needed)


async def trim(client: Redis, events: str, wanted: Cut) -> Place | None:
    """Do it; the first entry that is left.

    Raises:
        StoreError: it may have been done all the same.
    """
    with translated(client):
        if wanted.upto is not None:
            await client.xtrim(events, minid=id_of(wanted.upto), approximate=True)
        if wanted.most is not None:
            await client.xtrim(events, maxlen=wanted.most, approximate=True)
        found: Any = await client.xrange(events, count=1)
    return place_of(found[0][0]) if found else None


async def _needed(client: Redis, events: str, group: Mapping[str, Any]) -> Place:
    """The first entry that a group has not read, or has read and not acknowledged."""
    milliseconds, number = place_of(group["last-delivered-id"])
    unread = (milliseconds, number + 1)
    if not group["pending"]:
        return unread
    pending: Any = await client.xpending(events, group["name"])
    return min(unread, place_of(pending["min"])) if pending["min"] else unread


def place_of(entry_id: bytes) -> Place:
    """An entry id as what it is compared by."""
    milliseconds, _, number = entry_id.partition(b"-")
    return int(milliseconds), int(number or 0)


def id_of(place: Place) -> str:
    """An entry id as Redis takes it."""
    return f"{place[0]}-{place[1]}"
