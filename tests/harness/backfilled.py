"""A feed that changes while it is backfilled, and the judge of what its subscriber has got."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import TYPE_CHECKING, Any, Final

import msgspec

from poller.changes.events import Cause, EventFrame
from poller.changes.plan import PublishRules, plan
from poller.changes.records import Record, record_reader
from poller.clock import Clock
from poller.store.feed import FeedScripts, FeedStore
from poller.store.feed_state import READ_AT, FeedState
from poller.store.keys import FeedKeys
from poller.store.records import RecordReader
from poller.store.stream import last_ids
from tests.harness.waiting import unless

if TYPE_CHECKING:
    from redis.asyncio import Redis

FEED: Final = "acme/employmentUnavailabilities"
_AT_ONCE: Final = 500
_FRAME: Final = EventFrame(
    feed=FEED,
    generation="g",
    source="https://api.example.org/v1/employmentUnavailabilities",
    type_stem="org.example.api.employmentUnavailability",
    cause=Cause.DELTA,
)
_RECORDED: Final = "2026-01-02T03:04:05.678Z"


class ChangingFeed:
    """A feed of records that this process publishes, as rounds do.

    Attributes:
        revisions: the revision of each record, by key.
    """

    def __init__(self, client: Redis) -> None:
        self.revisions: dict[str, int] = {}
        self.keys = FeedKeys.of("poller", FEED)
        self._client = client
        lease = timedelta(seconds=600)
        self._store = FeedStore(client, FeedScripts(client), self.keys, nonce="writer", lease=lease, clock=Clock())
        self._read = record_reader("id")
        self._state: FeedState | None = None

    async def publish(self, numbers: Iterable[int]) -> None:
        """Publish the next revision of these records."""
        if self._state is None:
            state = await self._store.open_round()
            assert isinstance(state, FeedState)
            self._state = state
        records: dict[str, Record] = {}
        for number in numbers:
            name = f"r{number}"
            revision = self.revisions.get(name, 0) + 1
            read = self._read(json.dumps({"id": name, "n": revision, "reason": f"reason of {number}"}).encode())
            assert isinstance(read, Record)
            records[name] = read
        known = await self._store.known(list(records))
        commit, _ = plan(
            list(records.values()),
            known,
            frame=_FRAME,
            generation=self._state.generation,
            sequence=self._state.sequence,
            recorded=_RECORDED,
            rules=PublishRules(),
        )
        await self._store.commit(commit)
        self._state = msgspec.structs.replace(self._state, sequence=commit.next_sequence)
        for name in records:
            self.revisions[name] = self.revisions.get(name, 0) + 1

    async def fill(self, records: int, *, is_trimmed: bool = True) -> None:
        """Publish this many records, as a first reading that has ended; nothing of it stays in a trimmed stream."""
        for first in range(0, records, _AT_ONCE):
            await self.publish(range(first, min(first + _AT_ONCE, records)))
        await self._client.hset(self.keys.state, READ_AT, _RECORDED)
        if is_trimmed:
            await self._client.xtrim(self.keys.events, maxlen=0, approximate=False)

    async def change(self, rate: float, rng: Random, over: asyncio.Event) -> None:
        """Change this many records a second until the event is set."""
        clock = asyncio.get_running_loop().time
        began, changed = clock(), 0
        while not await unless(over, 0.05):
            due = min(int((clock() - began) * rate) - changed, _AT_ONCE)
            if due > 0:
                await self.publish({rng.randrange(len(self.revisions)) for _ in range(due)})
                changed += due


@dataclass(slots=True)
class _Got:
    """What a subscriber has got of one record: the first revision, the highest, and how many different ones."""

    first: int
    highest: int
    different: int = 1


@dataclass(slots=True)
class BackfillJudge:
    """What a subscriber has got, in the order in which it came.

    Attributes:
        events: how many came.
        backfilled: how many of them are backfilled ones.
        again: how many came with an id that had come before, by whether they are backfilled.
        fallen: those that came first after a higher revision of their record: record, revision, the higher one.
    """

    events: int = 0
    backfilled: int = 0
    again: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})
    fallen: list[tuple[str, int, int]] = field(default_factory=list)
    _seen: set[bytes] = field(default_factory=set)
    _got: dict[str, _Got] = field(default_factory=dict)

    def add(self, body: bytes) -> None:
        """Add the events of a request."""
        read: Any = json.loads(body)
        for event in read if isinstance(read, list) else [read]:
            data = event["data"]
            self.add_one(event["subject"], data["revision"], event["id"], is_backfilled=data["cause"] == "backfill")

    def add_one(self, key: str, revision: int, event_id: str, *, is_backfilled: bool) -> None:
        """Add one event."""
        self.events += 1
        self.backfilled += is_backfilled
        own = bytes.fromhex(event_id)
        if own in self._seen:
            self.again[is_backfilled] += 1
            return
        self._seen.add(own)
        got = self._got.get(key)
        if got is None:
            self._got[key] = _Got(revision, revision)
        elif revision < got.highest:
            self.fallen.append((key, revision, got.highest))
        elif revision > got.highest:
            got.highest = revision
            got.different += 1

    @property
    def records(self) -> int:
        """The number of records of which something came."""
        return len(self._got)

    def is_level(self, revisions: dict[str, int]) -> bool:
        """Whether the last revision of each record has come."""
        return all((got := self._got.get(key)) is not None and got.highest == last for key, last in revisions.items())

    def missed(self, revisions: dict[str, int]) -> list[str]:
        """The records of which the last revision or one after the first that came is missing."""
        found = []
        for key, last in revisions.items():
            got = self._got.get(key)
            if got is None or got.highest != last or got.different != last - got.first + 1:
                found.append(key)
        return found


async def naive_reader(client: Redis, judge: BackfillJudge, over: asyncio.Event, *, pause: asyncio.Event) -> None:
    """Reads all records first, and then the stream from its end on: what is published in between is missed.

    Args:
        client: of the store.
        judge: gets what it reads.
        over: ends it, once the stream was read to its end.
        pause: is set when it has read the records.
    """
    keys = FeedKeys.of("poller", FEED)
    reader, position = RecordReader(client, keys), None
    while True:
        chunk = await reader.scan(position, count=500)
        for number, record in enumerate(chunk.records):
            own = f"{abs(hash((record.key, record.revision, number))):032x}"[-32:]
            judge.add_one(record.subject, record.revision, own, is_backfilled=True)
        position = chunk.next
        if position is None:
            break
        await asyncio.sleep(0)  # gives the writer its turn
    pause.set()
    after = (await last_ids(client, [keys.events]))[keys.events]
    while True:
        ending = over.is_set()
        found: Any = await client.xrange(keys.events, min=f"({after}", count=500)
        for entry, fields in found:
            judge.add(fields[b"data"])
            after = entry.decode()
        if not found and ending:
            return
        if not found:
            await unless(over, 0.02)
