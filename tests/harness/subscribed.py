"""A scene with sinks: the subscriptions, the events they should get, and whether each sink has got them.

It is observed from outside: streams, groups and the sinks' own logs. Only scheduled retries have no public name; their
key is read directly.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from tests.harness.checker import Verdict, judge
from tests.harness.delivered import GRACE, Asked, OnRecord
from tests.harness.deliveries import judge_deliveries
from tests.harness.json_values import read
from tests.harness.requests import Arrived, ids_of
from tests.harness.scene import Scene, scene, stream
from tests.harness.sinks import SinkProcess, sink_process
from tests.harness.waiting import PATIENCE, Deadline, lasting, patience, strain
from tests.harness.wishes import SECRET, Wish

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Container, Mapping, Sequence

    from tests.harness.delivered import Deliveries, Entry
    from tests.harness.wire import Wire

__all__ = ["FEEDS", "OPERATIONS", "SECRET", "Subscribed", "Wish", "subscribed"]

FEEDS = ("contractTypes", "employmentUnavailabilities")
OPERATIONS = "poller:{operations}:events"
_LESS_THAN_A_PAUSE = 0.9  # seconds; the shortest pause that a sink asks for is one second


@dataclass(slots=True)
class Subscribed:
    """A scene and its sinks."""

    played: Scene
    sinks: SinkProcess
    wishes: Sequence[Wish]
    feeds: Sequence[str] = FEEDS
    kills: list[float] = field(default_factory=list)
    losses: Sequence[float] = ()
    suspensions: list[tuple[float, float]] = field(default_factory=list)
    outages: list[tuple[float, float]] = field(default_factory=list)
    wire: Wire | None = None  # before the store
    heard: float | None = None
    ttl: str = field(default_factory=lambda: lasting(1))
    resumed: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    on_record: dict[str, list[OnRecord]] = field(default_factory=lambda: defaultdict(list))
    _looked: int = 0
    _arrived: dict[int, Arrived] = field(default_factory=dict)
    _taken: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def config(
        self,
        name: str = "poller",
        *,
        without: Sequence[str] = (),
        lines: Mapping[str, str] = MappingProxyType({}),
        **differing: str,
    ) -> Path:
        """A configuration file with all subscriptions but some.

        Args:
            name: of the file.
            without: the ids of the subscriptions to leave out.
            lines: more lines for the tables of some feeds.
            differing: ``sinks`` (their URL), ``sink_timeout``, and the options of a scene.
        """
        path = self.played.config(name, resources=self.feeds, lines=lines, **{"ttl": self.ttl} | differing)
        secret = self.played.directory / "secret"
        secret.write_text(SECRET)
        secret.chmod(0o600)
        sinks, timeout = differing.get("sinks", self.sinks.url), differing.get("sink_timeout", "400ms")
        tables = [wish.table(secret, sinks, timeout) for wish in self.wishes if wish.sink not in without]
        path.write_text(path.read_text() + "".join(tables))
        return path

    async def killed(self) -> None:
        """Record that a process was killed now, and what is settled."""
        self.kills.append(time.monotonic())
        for wish in self.wishes:
            last, waiting = {}, {}
            for feed in self.feeds:
                last[feed], waiting[feed] = await self._open(feed, wish.sink)
            self.on_record[wish.sink].append(OnRecord(time.monotonic(), last, waiting))

    async def _open(self, feed: str, subscription: str) -> tuple[str, frozenset[str]]:
        """The position of a group, and the entries before it that are not settled."""
        client, group = self.played.client, f"sub:{subscription}"
        groups: Any = await client.xinfo_groups(stream(feed)) if await client.exists(stream(feed)) else []
        last = next((one["last-delivered-id"].decode() for one in groups if one["name"] == group.encode()), "")
        if not last:
            return "0-0", frozenset()
        held: Any = await client.xpending_range(stream(feed), group, min="-", max="+", count=100_000)
        parked = cast("list[bytes]", await client.hkeys(f"poller:{{acme/{feed}}}:{group}:parked"))
        return last, frozenset(entry.decode() for entry in (*(one["message_id"] for one in held), *parked))

    async def entries(self, feed: str) -> list[Entry]:
        """A feed's stream from its start."""
        found: Any = await self.played.client.xrange(stream(feed))
        return [(entry.decode(), fields[b"data"]) for entry, fields in found]

    async def source_verdict(self, upto: int, *, begun_anew: Container[str] = ()) -> Verdict:
        """Judge the streams by the source's history."""
        streams = {feed: [event for _, event in await self.entries(feed)] for feed in self.feeds}
        return judge(await self._log(), streams, upto=upto, begun_anew=begun_anew)

    async def caught_up(self, *, seconds: float = PATIENCE) -> dict[str, Deliveries]:
        """Wait until each sink has everything the source has now, or for the deadline; the verdict on each."""
        upto, deadline = await self.played.version(), Deadline(seconds)
        found = await self.published(upto, deadline)
        assert found.clean, str(found)
        verdicts = await self.delivered(deadline)
        for wish in self.wishes:
            if verdicts[wish.sink].clean:
                told = await self.told_by(wish, upto)
                assert told is None or not told.lost, f"{wish.sink}: {told}"
        return verdicts

    async def published(self, upto: int, deadline: Deadline, *, begun_anew: Container[str] = ()) -> Verdict:
        """Wait until the streams have the source's state at a version, or for the deadline; the verdict on them."""
        while True:
            found = await self.source_verdict(upto, begun_anew=begun_anew)
            if not found.lost or deadline.left <= 0:
                return found
            await self._soon(within=0.25)  # a verdict costs more than a check

    async def delivered(self, deadline: Deadline, *, begun_anew: Container[str] = ()) -> dict[str, Deliveries]:
        """Wait until each sink has its events of the streams, or for the deadline; the verdict on each."""
        due = {feed: len(await self.entries(feed)) for feed in self.feeds}
        owed = {wish.sink: await self._owed_ids(wish, begun_anew) for wish in self.wishes}
        while deadline.left > 0 and any(owed[name] - self.taken(name) for name in owed):
            await self._soon()
        return {wish.sink: await self.verdict(wish, due) for wish in self.wishes}

    async def verdict(self, wish: Wish, due: Mapping[str, int] | None = None) -> Deliveries:
        """Judge one sink."""
        log = list(self.sinks.of(wish.sink))
        entries = {feed: await self.entries(feed) for feed in self.feeds}
        streams = {feed: [(entry, wish.sent(event)) for entry, event in found] for feed, found in entries.items()}
        grace = min(GRACE * strain(), _LESS_THAN_A_PAUSE)
        asked = Asked(
            wish.wants,
            SECRET if wish.signed else None,
            {} if due is None else due,
            self.kills,
            self.losses,
            self.resumed[wish.sink],
            self.on_record[wish.sink],
            self.heard or grace,
            grace,
            suspensions=self.suspensions,
            outages=[*self.outages, *(self.wire.outages if self.wire else ())],
        )
        return judge_deliveries(log, streams, asked)

    def taken(self, sink: str) -> set[str]:
        """The ids of the events that a sink has answered with 2xx."""
        lines = self.sinks.lines()
        for line in lines[self._looked :]:
            if isinstance(line, Arrived):
                self._arrived[line.number] = line
            elif line.status is not None and 200 <= line.status < 300:
                self._taken[line.sink].update(ids_of(self._arrived[line.number]))
        self._looked = len(lines)
        return self._taken[sink]

    async def _soon(self, *, within: float = 0.05) -> None:
        """Return when an operational event appears, or after a short time, because the sinks' log does not notify."""
        await self.played.client.xread({OPERATIONS: "$"}, count=1, block=int(within * 1000))

    async def until(self, true: Callable[[], bool]) -> None:
        """Return once the condition holds, checked repeatedly."""
        while not true():
            await self._soon()

    async def more(self, sink: str, count: int) -> None:
        """Wait until a sink has accepted this many more events."""
        target = len(self.taken(sink)) + count
        async with patience(f"{count} more events at {sink}"):
            await self.until(lambda: len(self.taken(sink)) >= target)

    async def more_requests(self, sink: str, count: int) -> None:
        """Wait until this many more requests have reached a sink, whatever it answers."""
        target = self._requests(sink) + count
        async with patience(f"{count} more requests at {sink}"):
            await self.until(lambda: self._requests(sink) >= target)

    def _requests(self, sink: str) -> int:
        return sum(isinstance(line, Arrived) for line in self.sinks.of(sink))

    async def ended(self, sink: str) -> None:
        """Wait until every request that has reached a sink has ended."""

        def under_way() -> int:
            return sum(1 if isinstance(line, Arrived) else -1 for line in self.sinks.of(sink))

        async with patience(f"the end of the requests at {sink}"):
            await self.until(lambda: not under_way())

    async def noted_until(self, sink: str) -> None:
        """Wait until the pause that a sink asked for is stored."""
        async with patience(f"the stored pause of {sink}"):
            while not await self.played.client.hexists("poller:{subscriptions}:until", sink):
                await self._soon()

    async def settled(self, sink: str) -> None:
        """Wait until every event read for a sink is settled."""
        async with patience(f"all events of {sink} to be settled"):
            while any([(await self._open(feed, sink))[1] for feed in self.feeds]):
                await self._soon()

    async def paused(self, sink: str) -> None:
        """Wait until the pause of a subscription is stored."""
        async with patience(f"{sink} to be paused"):
            while not await self.played.client.hexists("poller:{subscriptions}:paused", sink):
                await self._soon()

    def note_resumed(self, sink: str) -> None:
        """Record that the subscription was resumed now, so that requests are allowed again."""
        self.resumed[sink].append(time.monotonic())

    async def announcements(self, kind: str) -> list[dict[str, Any]]:
        """The operational events of one type."""
        found: Any = await self.played.client.xrange(OPERATIONS)
        events = [json.loads(fields[b"data"]) for _, fields in found]
        return [event for event in events if event["type"] == kind]

    async def announced(self, kind: str, subject: str) -> dict[str, Any]:
        """Wait for an operational event; its content."""
        async with patience(f"{kind} of {subject}"):
            while True:
                for event in await self.announcements(kind):
                    if event["subject"] == subject:
                        return event
                await self._soon()

    async def _owed_ids(self, wish: Wish, begun_anew: Container[str]) -> set[str]:
        """The ids of the events a sink should get; of feeds that were reset none of the baseline."""
        events = [(feed, read(event)) for feed in self.feeds for _, event in await self.entries(feed)]
        owed = ((feed, event) for feed, event in events if wish.wants(event))
        return {event["id"] for feed, event in owed if feed not in begun_anew or event["data"]["cause"] != "baseline"}

    async def _log(self) -> list[dict[str, Any]]:
        return [line for line in await self.played.log() if line["resource"] in self.feeds]

    async def told_by(self, wish: Wish, upto: int) -> Verdict | None:
        """Judge the accepted events of a sink as if they were the stream; None if its filters leave events out."""
        entries = {feed: await self.entries(feed) for feed in self.feeds}
        if not all(wish.wants(read(event)) for found in entries.values() for _, event in found):
            return None
        taken = self.taken(wish.sink)
        told = {feed: [event for _, event in found if read(event)["id"] in taken] for feed, found in entries.items()}
        return judge(await self._log(), told, upto=upto)


@asynccontextmanager
async def subscribed(
    directory: Path,
    wishes: Sequence[Wish],
    *,
    store: str | None = None,
    seed: int = 1,
    records: int = 40,
    changes_per_second: float = 60,
    feeds: Sequence[str] = FEEDS,
    profile: str = "",
    faults: str = "",
    logged: bool = True,
) -> AsyncIterator[Subscribed]:
    """A scene with sinks for the duration of the block; ``logged=False`` keeps no log, if nothing is judged."""
    with sink_process(directory / "sinks" if logged else Path(os.devnull), seed) as sinks:
        async with scene(
            directory,
            store=store,
            records=records,
            changes_per_second=changes_per_second,
            seed=seed,
            profile=profile,
            faults=faults,
        ) as played:
            yield Subscribed(played, sinks, wishes, feeds)
