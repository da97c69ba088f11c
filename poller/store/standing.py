"""What is known of an event stream, and up to where everybody who reads it is done. Reads only.

Law: nobody is taken to be further than he is. What is gone from the stream is needed by nobody any more, so an entry
that went while somebody held it holds up nothing.

A stream's size is the server's estimate from the sizes of :data:`SAMPLES` of its nodes: within 2 % where the sizes of
events are mixed, for a tenth of a millisecond; all nodes of a stream of 300 MB take 6 ms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from redis.asyncio import Redis

from poller.store.connection import translated
from poller.store.keys import FeedKeys, PairKeys, group_of
from poller.store.trimming import Place, Stream, before, holder

SAMPLES: Final = 2000
_OURS: Final = group_of("")
_BEGINNING: Final[Place] = (0, 0)
_FIELDS: Final = ("place", "replay_after", "replay_to")


class Watched(msgspec.Struct, frozen=True):
    """What a subscription has at a feed.

    Attributes:
        keys: of the pair.
        earliest: whether it wants all there is, where it has not begun.
    """

    keys: PairKeys
    earliest: bool = False


Groups = Mapping[str, Mapping[str, Any]]
"""What the server says of each consumer group of a stream, by its name."""


async def stream_of(client: Redis, events: str) -> Stream:
    """What is known of a stream; one that is not there has no entries.

    Raises:
        StoreError: see :func:`~poller.store.connection.translated`.
    """
    with translated(client):
        asking = client.pipeline(transaction=False)
        asking.xlen(events)
        asking.memory_usage(events, samples=SAMPLES)
        asking.xrange(events, count=1)
        length, size, found = await asking.execute()
    return Stream(length, size or 0, _place(found[0][0]) if found else None)


async def groups_of(client: Redis, events: str) -> Groups:
    """The consumer groups of a stream that is there.

    Raises:
        StoreError: see :func:`~poller.store.connection.translated`.
    """
    with translated(client):
        found: Any = await client.xinfo_groups(events)
    return {one["name"].decode("utf-8", "surrogateescape"): one for one in found}


def pairs_of(groups: Groups, prefix: str, feed: str, known: Mapping[str, Watched]) -> dict[str, Watched]:
    """The subscriptions of a feed by their groups: those that are known, and those that have a group all the same."""
    found = {group_of(name): one for name, one in known.items()}
    for name in groups:
        if name.startswith(_OURS) and name not in found:
            found[name] = Watched(PairKeys.of(prefix, feed, name.removeprefix(_OURS)))
    return found


async def done_of(
    client: Redis, events: str, first: Place, groups: Groups, pairs: Mapping[str, Watched]
) -> dict[str, Place]:
    """By each group, the entry up to which it needs none any more.

    Args:
        client: of the store.
        events: the stream's key.
        first: its first entry.
        groups: its consumer groups.
        pairs: the subscriptions to it, by their groups, whether or not these are there.

    Raises:
        StoreError: see :func:`~poller.store.connection.translated`.
    """
    done = {name: _place(group["last-delivered-id"]) for name, group in groups.items()}
    held = [name for name, group in groups.items() if group["pending"]]
    with translated(client):
        asking = client.pipeline(transaction=False)
        for name in held:
            asking.xpending_range(events, name, min=_entry_text(first), max="+", count=1)
        for one in pairs.values():
            asking.hmget(one.keys.state, list(_FIELDS))
            asking.hkeys(one.keys.parked)
        answers = await asking.execute()
    for name, found in zip(held, answers, strict=False):
        if found:
            done[name] = min(done[name], before(_place(found[0]["message_id"])))
    rest = answers[len(held) :]
    for (name, one), kept, parked in zip(pairs.items(), rest[::2], rest[1::2], strict=True):
        stands = [done[name]] if name in done else _unbegun(one, kept)
        needs = [*stands, *_begun(kept, first), *_waiting(parked, first)]
        if needs:
            done[name] = min(needs)
    return done


async def held_by(client: Redis, prefix: str, feed: str, stream: Stream, *, oldest: Place) -> str | None:
    """The consumer group for which the stream's first entry stays, though it is old enough to go; None: there is none.

    Raises:
        StoreError: see :func:`~poller.store.connection.translated`.
    """
    if stream.first is None or stream.first >= oldest:
        return None
    events = FeedKeys.of(prefix, feed).events
    groups = await groups_of(client, events)
    done = await done_of(client, events, stream.first, groups, pairs_of(groups, prefix, feed, {}))
    return holder(stream, done, oldest=oldest)


def _unbegun(one: Watched, kept: list[bytes | None]) -> Iterable[Place]:
    """Where it begins, or goes on, that has no group."""
    if kept[0] is not None:
        yield _place(kept[0])
    elif one.earliest:
        yield _BEGINNING


def _begun(kept: list[bytes | None], first: Place) -> Iterable[Place]:
    """Where its replay stands, if that is not at an end."""
    if kept[1] is not None and kept[2] is not None and _place(kept[2]) >= first:
        yield _place(kept[1])


def _waiting(parked: Iterable[bytes], first: Place) -> Iterable[Place]:
    """The place before the first delivery that waits."""
    there = [entry for entry in map(_place, parked) if entry >= first]
    if there:
        yield before(min(there))


def _place(entry: bytes) -> Place:
    milliseconds, _, number = entry.partition(b"-")
    return int(milliseconds), int(number or 0)


def _entry_text(entry: Place) -> str:
    return f"{entry[0]}-{entry[1]}"
