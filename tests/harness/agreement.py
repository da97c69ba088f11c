"""Checks that state, snapshots and stream of a feed agree, so that no commit was half written.

Reads the keys directly, because no public interface shows all three.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from poller.store.feed_state import state_of
from poller.store.keys import FeedKeys
from poller.store.snapshots import SnapshotCodec, key_of
from tests.harness.json_values import read

if TYPE_CHECKING:
    from redis.asyncio import Redis


async def disagreements(client: Redis, feed: str) -> list[str]:
    """The contradictions at one instant, in words; empty if there are none. For a feed that was never trimmed."""
    keys = FeedKeys.of("poller", feed)
    async with client.pipeline(transaction=True) as asking:
        for key in (keys.state, keys.dictionaries, keys.snapshots):
            asking.hgetall(key)
        asking.xrange(keys.events)
        told, dictionaries, stored, entries = await asking.execute()
    state = state_of(told)
    codec = SnapshotCodec({int(number): dictionary for number, dictionary in dictionaries.items()})
    snapshots = {key: codec.decode(key, value) for name, value in stored.items() for key in (key_of(name),)}
    events: list[dict[str, Any]] = [read(fields[b"data"]) for _, fields in entries]
    found = []
    if [int(event["sequence"]) for event in events] != list(range(1, state.sequence + 1)):
        found.append(f"{feed}: the state is at {state.sequence}, the stream has {len(events)} entries")
    last: dict[str, dict[str, Any]] = defaultdict(dict)
    for event in events:
        last[event["subject"].lower()] = event
    for event in last.values():
        fits = [
            one
            for one in snapshots.values()
            if (one.sequence, one.revision, one.removed)
            == (int(event["sequence"]), event["data"]["revision"], event["type"].endswith(".removed.v1"))
        ]
        if len(fits) != 1:
            found.append(f"{feed}: no snapshot is as the last event of {event['subject']}")
    if len(last) != len(snapshots):
        found.append(f"{feed}: {len(snapshots)} snapshots, {len(last)} records in the stream")
    return found
