"""A daemon with naive commits: the control that the checker must catch.

Rounds, source and comparison are the program's own. Its store writes events, snapshots and state by separate commands,
checks nothing, and lets the client repeat unanswered commands.

Run as ``python -m tests.harness.naive ORDER``, where ORDER says what is written first: ``events`` or ``snapshots``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, cast

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff

from poller.changes.full_readings import DeltaMemory, HeldVersion
from poller.clock import Clock
from poller.config.load import load
from poller.control.factories import client_of, feed_of, keys_of
from poller.failpoints import arm, reach
from poller.source.round import run_round
from poller.store.feed import MissingRecords, PublishedVersion, named_qualifications
from poller.store.feed_state import FeedState, IdleStart, state_of
from poller.store.snapshots import SnapshotCodec
from tests.harness.waiting import unless

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Container, Mapping, Sequence
    from datetime import timedelta

    from poller.changes.diff import Snapshot
    from poller.changes.plan import Commit, SubstreamSnapshot
    from poller.config.settings import Settings
    from poller.store.feed import PackedCommit
    from poller.store.keys import FeedKeys

    Fields = dict[
        bytes | bytearray | memoryview[int] | str | int | float, bytes | bytearray | memoryview[int] | str | int | float
    ]

_INTERVAL = 0.1
_EAGER = Retry(ExponentialWithJitterBackoff(base=0.01, cap=0.1), 10)  # as often as Redis() does by default


class NaiveStore:
    """A store for rounds whose commit is several separate writes."""

    def __init__(self, client: Redis, keys: FeedKeys, *, order: str) -> None:
        self._client = client
        self._keys = keys
        self._order = order
        self._codec = SnapshotCodec(form=1)
        self.deltas = DeltaMemory(Clock())
        self.keeps_removed = False
        self.layout = None
        self.state_digest = b""  # no round of it is idle
        self.idle_start = None

    async def end_idle_round(self, start: IdleStart, commit: Commit) -> bool:  # noqa: ARG002 -- as a round calls it
        return False

    async def open_round(self) -> FeedState:
        found = cast("dict[bytes, bytes]", await self._client.hgetall(self._keys.state))
        return state_of({b"generation": b"naive", **found})

    async def known(self, record_keys: list[str]) -> dict[str, Snapshot]:
        if not record_keys:
            return {}
        stored = await self._client.hmget(self._keys.snapshots, record_keys)
        pairs = zip(record_keys, cast("list[bytes | None]", stored), strict=True)
        return {key: self._codec.decode(key, value) for key, value in pairs if value is not None}

    async def are_stored(self, record_keys: list[str], raws: Sequence[bytes]) -> None:  # noqa: ARG002 -- as a round calls it
        return None

    async def absent(self, seen: Container[str], *, most: int, known: int | None = None) -> MissingRecords:  # noqa: ARG002 -- likewise
        return MissingRecords(0, 0, {})

    async def subjects_since(self, age: timedelta, *, cause: str | None = None) -> frozenset[str]:  # noqa: ARG002 -- likewise
        return frozenset()

    async def published_since(self, sequence: int) -> AsyncGenerator[PublishedVersion]:
        if sequence < 0:
            yield PublishedVersion("", None)

    async def page_digests(self) -> None:
        return None

    async def listings(self) -> dict[str, SubstreamSnapshot]:
        return {}

    async def held_versions(self) -> dict[str, HeldVersion]:
        return {}

    def pack(self, commit: Commit) -> None:
        pass

    async def write(self, commit: Commit, packed: PackedCommit | None) -> None:
        assert packed is None
        await self.commit(commit)

    async def commit(self, commit: Commit) -> None:
        reach("commit.planned")
        steps = (self._append, self._remember)
        first, second = steps if self._order == "events" else reversed(steps)
        await first(commit)
        reach("commit.sent")
        await second(commit)
        marks: Fields = {name: value for name, value in commit.marks.items() if value is not None}
        await self._client.hset(self._keys.state, mapping=marks | {"sequence": commit.next_sequence})
        if commit.qualifications:
            await self._client.zadd(self._keys.qualifications, dict.fromkeys(commit.qualifications, 0.0))
        reach("commit.done")

    async def _append(self, commit: Commit) -> None:
        for event in commit.events:
            await self._client.xadd(self._keys.events, {b"data": event})

    async def _remember(self, commit: Commit) -> None:
        if commit.snapshots:
            packed: Fields = {key: self._codec.encode(key, snapshot) for key, snapshot in commit.snapshots.items()}
            await self._client.hset(self._keys.snapshots, mapping=packed)


async def run(settings: Settings, environ: Mapping[str, str], order: str, clock: Clock) -> None:
    """Poll until killed."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Redis.from_url(settings.redis.url or "", retry=_EAGER))
        polled = []
        for source in settings.sources:
            api = await stack.enter_async_context(client_of(source, environ, clock))
            polled += [(feed_of(source, feed), keys_of(settings, source.feed_id(feed)), api) for feed in source.feeds]

        async def qualifications(since: int) -> Mapping[str, int]:
            return await named_qualifications(client, [keys for _, keys, _ in polled], since)

        while not await unless(asyncio.Event(), _INTERVAL):
            for feed, keys, api in polled:
                store = NaiveStore(client, keys, order=order)
                result = await run_round(feed, store, api.get, clock=clock, qualifications=qualifications)
                sys.stderr.write(json.dumps({"event": "round", **result.public}) + "\n")


def main() -> None:
    """Read the command line, arm the failpoint, run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("order", choices=("events", "snapshots"))
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--log-format")
    parser.add_argument("--log-level")
    asked = parser.parse_args()
    if spec := os.environ.get("POLLER_FAILPOINT"):
        arm(spec)
    asyncio.run(run(load(asked.config, os.environ), os.environ, asked.order, Clock()))


if __name__ == "__main__":
    main()
