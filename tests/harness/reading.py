"""A source in this process with any of the sandbox's profiles, and the program's own rounds over it, one at a time.

The sandbox is on a real socket, the store is a real server, the feeds come from a configuration file. There is no
daemon: the test starts each round. The test also owns both clocks: the source's moves by a second at each reading, so
that no two versions have the same time.
"""

from __future__ import annotations

import json
import re
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING

import aiohttp
import msgspec

from poller.config.load import load
from poller.daemon.round_runner import PolledFeed, polled_feeds
from poller.redis.client import commands
from poller.sandbox.api import answer
from poller.sandbox.data import mutate, seed
from poller.sandbox.faults.base import parameter
from poller.sandbox.faults.registry import chosen
from poller.sandbox.history import RESOURCES as SERVED
from poller.sandbox.history import History
from poller.sandbox.server import SEEDED_AT, serving
from poller.store.feed_state import CONFIRMATION, FeedState, state_of
from poller.store.scripts import SHEBANG
from tests.harness.checker import Verdict, judge
from tests.harness.clock import StubClock
from tests.harness.json_values import read as as_json
from tests.harness.scene import RESOURCES, Scene

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path
    from typing import Any

    from poller.sandbox.api import SandboxRequest, SandboxResponse
    from poller.source.feed import RoundResult

TOKEN = "s3cret-T0ken-0123456789-abcdefgh"  # noqa: S105 -- of no use anywhere
DAY = timedelta(days=1)
_NUMBER = re.compile(rb'"record":\{"id":(\d+)[,}]')
_UUID = re.compile(rb"[0-9A-F]{8}(?:-[0-9A-F]{4}){3}-[0-9A-F]{12}")
_CHANGED = re.compile(rb'"changed":\[[^\]]*\]')


class Clock:
    """A wall clock that moves by a second each time it is read."""

    def __init__(self) -> None:
        self._time = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        self.pass_by(timedelta(seconds=1))
        return self._time

    def pass_by(self, span: timedelta) -> None:
        self._time += span


class Source:
    """The records behind the API, and whether they change during a round."""

    def __init__(self, records: int) -> None:
        self.history = History()
        self.rng = Random(11)
        self.now = Clock()
        self.restless = self.withdrawing = False
        self._asked: set[str] = set()
        seed(self.history, self.rng, records=records, at=SEEDED_AT)

    def respond(self, history: History, ask: SandboxRequest) -> SandboxResponse:
        """The well-behaved API; a restless one makes two changes before each further page, once for each.

        A ``withdrawing`` one also removes a record of the listing.
        """
        token = parameter(ask, "pageToken")
        if self.restless and token is not None and token not in self._asked:
            self._asked.add(token)
            self.change(2)
            if self.withdrawing and (gone := history.pick(ask.resource, self.rng)):
                history.remove(ask.resource, gone.id, self.now())
        return answer(history, ask)

    def change(self, count: int) -> None:
        for _ in range(count):
            mutate(self.history, self.rng, self.now())

    def withdraw(self, count: int) -> None:
        """Remove this many records of each resource."""
        for resource in RESOURCES:
            for _ in range(count):
                present = self.history.pick(resource, self.rng)
                assert present is not None
                self.history.remove(resource, present.id, self.now())


@dataclass(slots=True)
class Reading:
    """Source, store, and the feeds between them.

    Attributes:
        played: access to sandbox and store from outside.
        source: the records.
        config: the feeds' configuration file.
        now: the clock of the rounds.
        feeds: the program's feeds.
        results: the results of all rounds so far.
    """

    played: Scene
    source: Source
    config: Path
    now: Clock
    feeds: Sequence[PolledFeed] = ()
    results: list[RoundResult] = field(default_factory=list)

    async def rounds(self) -> list[RoundResult]:
        """One round of each feed, one after the other."""
        results = [await polled.round(whole=True) for polled in self.feeds]
        self.results += results
        return results

    async def good_rounds(self) -> None:
        """One round of each feed, each of which must be good."""
        failed = [(result.feed, result.mode.value, result.error) for result in await self.rounds() if not result.ok]
        assert not failed, failed

    async def switch(self, call: str) -> None:
        """Make one of the sandbox's control calls."""
        async with self.played.http.post(f"{self.played.source}/_sandbox/{call}") as said:
            assert said.status < 300, await said.text()

    async def state(self, polled: PolledFeed | None = None) -> FeedState:
        """The stored state of this feed, by default of the first."""
        fields: Any = await self.played.client.hgetall((polled or self.feeds[0]).store.keys.state)
        return state_of(fields)

    async def take_as_confirmed(self) -> None:
        """Mark the feeds as confirmed, so that their next rounds are deltas."""
        for polled in self.feeds:
            await self.played.client.hdel(polled.store.keys.state, CONFIRMATION)

    async def quarantine(self) -> list[tuple[bytes, str]]:
        """The quarantined records of the first feed: bytes and reason."""
        entries: Any = await self.played.client.xrange(self.feeds[0].store.keys.quarantine)
        return [(entry[b"raw"], entry[b"reason"].decode()) for _, entry in entries]

    def not_of_source(self, published: Sequence[bytes]) -> list[tuple[str, bytes]]:
        """Of these events the records that the source never had, each with its id."""
        events = [json.loads(event) for event in published]
        known = {version.id.lower() for version in self.source.history.since(0)}
        return [
            (event["subject"], json.dumps(event["data"]["record"]).encode())
            for event in events
            if event["subject"].lower() not in known
        ]

    async def verdict(self, *, made_up: Sequence[tuple[str, bytes]] = (), one_case: bool = False) -> Verdict:
        """Judge the feeds' streams by everything the source has now.

        Args:
            made_up: records from a profile instead of the source, each with its id; they have to be published too.
            one_case: whether the source changes the case of its ids, so that both cases count as equal.
        """
        resources = [polled.feed.resource.path.rpartition("/")[2] for polled in self.feeds]
        streams = {name: [*map(_told_apart, await self.played.events(name))] for name in resources}
        if one_case:
            streams = {name: [*map(_in_one_case, events)] for name, events in streams.items()}
        log = [line for line in await self.played.log() if line["resource"] in resources]
        log += [
            {"version": 0, "resource": resources[0], "id": id_, "record": as_json(record)} for id_, record in made_up
        ]
        return judge(log, streams, upto=self.source.history.version)


def _told_apart(event: bytes) -> bytes:
    """Mark an event whose id is a number by its subject, to distinguish it from the same digits as text."""
    found = _NUMBER.search(event)
    return event.replace(b'"subject":"%b"' % found[1], b'"subject":"number %b"' % found[1]) if found else event


def _in_one_case(event: bytes) -> bytes:
    """An event with its ids in lower case and without pointers to ids that differ in case only."""
    return _CHANGED.sub(_but_the_id, _UUID.sub(_lower, event))


def _but_the_id(found: re.Match[bytes]) -> bytes:
    return found[0].replace(b'"/id",', b"").replace(b',"/id"', b"")


def _lower(found: re.Match[bytes]) -> bytes:
    return found[0].lower()


@asynccontextmanager
async def reading(  # noqa: D417 -- see the scene
    directory: Path,
    store: str,
    *profiles: str,
    resources: Sequence[str] = RESOURCES,
    feed: str = "limit = 12",
    source: str = "",
) -> AsyncIterator[Reading]:
    """A reading for the duration of the block.

    Args:
        profiles: the sandbox's profiles.
        resources: the feeds.
        feed: further lines of each feed's configuration; ``FIELDS`` means all fields of its resource.
        source: further lines of the source's configuration.
    """
    served, now = Source(130), Clock()
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(
            serving(
                served.history,
                rng=served.rng,
                token=TOKEN,
                now=served.now,
                respond=served.respond,
                choices=chosen(profiles),
            )
        )
        client = await stack.enter_async_context(commands(store))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        played = Scene(directory, url, store, client, http)
        config = _config(played, resources, feed, source)
        read = Reading(played, served, config, now)
        read.feeds = await stack.enter_async_context(
            polled_feeds(load(config, {}), {"API_TOKEN": TOKEN}, client, shebang=SHEBANG, clock=StubClock(now=now))
        )
        for polled in read.feeds:  # rounds follow each other without a pause, so confirmations may too
            polled.feed = msgspec.structs.replace(polled.feed, apart=timedelta(0), lag=timedelta(0))
        yield read


def _config(played: Scene, resources: Sequence[str], feed: str, source: str) -> Path:
    """The configuration file. A short interval makes a feed retry immediately or not at all within a round.

    The leases are long: nobody else wants them, and a busy machine may be slow.
    """
    lines = ["[redis]", f'url = "{played.store}"', "[lease]", 'ttl = "10m"']
    lines += ["[[sources]]", 'name = "acme"', f'base_url = "{played.source}"']
    lines += ['auth = { token_env = "API_TOKEN" }', source]
    for resource in resources:
        fields = json.dumps(sorted(SERVED[resource].fields))
        lines += ["[[sources.feeds]]", f'resource = "{resource}"', 'interval = "100ms"', 'jitter = "0s"']
        lines.append(feed.replace("FIELDS", fields))
    path = played.directory / "poller.toml"
    path.write_text("\n".join(lines))
    return path
