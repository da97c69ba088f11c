"""The real side of the model test: the store of one feed, its processes, and the commits of the real planner."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from poller.changes.events import Cause, EventFrame
from poller.changes.plan import Commit, PublishRules, plan, plan_removals
from poller.changes.records import Record, record_reader
from poller.clock import moment_of
from poller.redis.client import commands
from poller.store.feed import FeedScripts, FeedStore
from poller.store.feed_state import FeedState, state_of
from poller.store.keys import FEED_KEYS, FeedKeys, remembered_key
from poller.store.recovery import FeedMemory, HighWaterMark
from poller.store.scripts import COMMIT, SHEBANG
from poller.store.snapshots import SnapshotCodec, key_of
from tests.harness.clock import StubClock
from tests.store.commit_model import Planned

if TYPE_CHECKING:
    import asyncio

    from poller.changes.diff import Snapshot

T = TypeVar("T")
Sent = tuple[Planned, Commit]
"""A commit, and what the model makes of it."""

FEED = "acme/contractTypes"
KEYS = FeedKeys.of("poller", FEED)
NOTES = remembered_key("poller")
ALL = [str(getattr(KEYS, name)) for name in FEED_KEYS if name != "lease"]
RECORDED = "2026-01-02T03:04:05.678Z"

_read = record_reader("id")


@dataclass(slots=True)
class Process:
    """A polling process. ``round`` holds what its round has read, None between rounds; ``sent`` holds its commits."""

    store: FeedStore
    nonce: str
    round: dict[str, int] | None = None
    pending: Sent | None = None
    sent: list[Sent] = field(default_factory=list)

    @property
    def place(self) -> HighWaterMark:
        """The position of the feed as this process knows it."""
        assert self.store.memory.known is not None
        return self.store.memory.known


class World:
    """An empty store and the processes that use it."""

    def __init__(self, url: str, runner: asyncio.Runner, broken: tuple[str, str]) -> None:
        self.numbers = count()
        self.converts = False
        self._runner = runner
        self.client = commands(url)
        self.run(self.client.flushall())
        self._scripts = FeedScripts(self.client, shebang=SHEBANG)
        self._scripts.commit = self.client.register_script(SHEBANG + COMMIT.replace(*broken))

    def run(self, work: Awaitable[T]) -> T:
        return self._runner.run(_awaited(work))

    def close(self) -> None:
        self.run(self.client.aclose())

    def process(self) -> Process:
        number = next(self.numbers)
        clock = StubClock(
            now=lambda: moment_of(1_000),
            monotonic=lambda: float(next(self.numbers)) * 5,
            draws=(f"{number:08x}" for number in self.numbers),
        )
        memory = FeedMemory(self.client, NOTES, FEED, clock=clock)
        store = FeedStore(
            self.client,
            self._scripts,
            KEYS,
            nonce=f"nonce{number}",
            lease=timedelta(seconds=600),
            clock=clock,
            memory=memory,
            may_convert=self._may_convert,
        )
        return Process(store, f"nonce{number}")

    async def _may_convert(self) -> bool:
        return self.converts

    def page(self, process: Process, values: Mapping[str, int]) -> Commit:
        """The commit of a process for these records, planned on what it reads from the store."""
        commit, _ = plan(
            [_record(key, value) for key, value in values.items()],
            self.run(process.store.known(list(values))),
            frame=_frame(process.place.generation),
            generation=process.place.generation,
            sequence=process.place.sequence,
            recorded=RECORDED,
            rules=PublishRules(),
        )
        return commit

    def removal(self, process: Process, gone: Sequence[str]) -> Commit | None:
        """The commit that removes these records; None if the process does not know all of them."""
        known = self.run(process.store.known(list(gone)))
        if not gone or known.keys() != set(gone):
            return None
        commit, _ = plan_removals(
            {key: (key, known[key]) for key in gone},
            dict.fromkeys(gone, _frame(process.place.generation)),
            generation=process.place.generation,
            sequence=process.place.sequence,
            recorded=RECORDED,
        )
        return commit

    def delete(self, *keys: str) -> None:
        self.run(self.client.delete(*keys))

    def dump(self) -> dict[str, bytes]:
        """The keys of the feed and of the other slot, read at one instant."""
        names = [*ALL, NOTES]
        asking = self.client.pipeline(transaction=True)
        for name in names:
            asking.dump(name)
        values = self.run(asking.execute())
        return {name: value for name, value in zip(names, values, strict=True) if value is not None}

    def restore(self, dump: Mapping[str, bytes], names: Sequence[str]) -> None:
        """Restore these keys, without leases."""
        asking = self.client.pipeline(transaction=True)
        asking.delete(*names, KEYS.lease)
        for name in names:
            if name in dump:
                asking.restore(name, 0, dump[name])
        self.run(asking.execute())

    def stored(self) -> tuple[FeedState, dict[str, Snapshot], list[dict[str, Any]]]:
        """State, snapshots and events."""
        asking = self.client.pipeline(transaction=False)
        asking.hgetall(KEYS.state)
        asking.hgetall(KEYS.snapshots)
        asking.xrange(KEYS.events)
        state, snapshots, entries = self.run(asking.execute())
        codec = SnapshotCodec()
        known = {key: codec.decode(key, value) for name, value in snapshots.items() for key in (key_of(name),)}
        assert len(known) == len(snapshots), "a record stands in the hash twice"
        return state_of(state), known, [json.loads(fields[b"data"]) for _, fields in entries]

    def whole(self, *, ordered: bool = True) -> bool:
        """Whether no part is missing. With ``ordered``, a requested reset does not count as missing."""
        asking = self.client.pipeline(transaction=False)
        asking.hgetall(KEYS.state)
        asking.hlen(KEYS.snapshots)
        state, snapshots = self.run(asking.execute())
        if b"generation" not in state or (b"anew" in state and not ordered):
            return False
        return int(snapshots) >= int(state.get(b"kept", b"0").split()[0])

    def told(self) -> int:
        """The number of losses noted."""
        noted = self.run(self.client.hget(NOTES, FEED))
        return int(json.loads(noted)["told"]) if noted else 0


async def _awaited(work: Awaitable[T]) -> T:
    return await work


def _record(key: str, value: int) -> Record:
    record = _read(json.dumps({"id": key, "n": value}).encode())
    assert isinstance(record, Record)
    return record


def _frame(generation: str) -> EventFrame:
    return EventFrame(
        feed=FEED, generation=generation, source="https://api.example.org", type_stem="x.y", cause=Cause.DELTA
    )
