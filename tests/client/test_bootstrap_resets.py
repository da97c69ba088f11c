"""Laws of a bootstrap whose feed is reset, or whose store goes back: the result is the present state all the same."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, Self

import pytest
from cloudevents.core.v1.event import CloudEvent
from redis.asyncio import Redis

from poller.client import Consumer
from poller.redis.client import commands
from tests.client.published import FEED, STATE, STREAM, event_of
from tests.client.records_api import FIRST, GENERATION, RECORDS, SEQUENCE, RecordsApi, serving
from tests.client.test_consumer import waiting
from tests.harness.waiting import until, within
from tests.servers import free_port, running

REVISIONS: Final = STATE.replace(":state:", ":revisions:")
NAMES: Final = [f"K{number:03}" for number in range(25)]
SHORT: Final = timedelta(milliseconds=400)
BEFORE: Final = "before"
AFTER: Final = "after"

Version = tuple[str, int, str]
"""Subject, revision and value."""


class Source:
    """Records with values, and their events; ids are of generation, record, revision and value, as the daemon's."""

    def __init__(self, store: Redis) -> None:
        self.store = store
        self.generation = FIRST
        self.sequence = 0
        self.revisions: dict[str, int] = {}
        self.values: dict[str, str] = {}

    async def put(self, subject: str, value: str) -> None:
        """The next version of a record."""
        self.sequence += 1
        revision = self.revisions[subject] = self.revisions.get(subject, 0) + 1
        self.values[subject] = value
        named = f"{self.generation}/{subject}/{revision}/{value}"
        event_id = blake2b(named.encode(), digest_size=16).hexdigest()
        event = json.loads(event_of(self.sequence, subject=subject, revision=revision, event_id=event_id))
        event["data"]["record"]["value"] = value
        async with self.store.pipeline(transaction=True) as both:
            both.hset(RECORDS, subject, f"{revision}:{value}")
            both.xadd(STREAM, {"data": json.dumps(event)})
            both.set(SEQUENCE, self.sequence)
            await both.execute()

    async def fill(self) -> None:
        """Records that exist before, of which the stream has lost all events."""
        for name in NAMES:
            await self.put(name, BEFORE)
        await self.store.xtrim(STREAM, maxlen=0, approximate=False)

    async def reset(self, *, silent: bool) -> None:
        """A new generation: all records with other values, published or not."""
        self.generation = f"after {self.generation}"
        self.revisions.clear()
        async with self.store.pipeline(transaction=True) as both:
            both.delete(RECORDS)
            both.set(GENERATION, self.generation)
            await both.execute()
        for name in NAMES:
            if silent:
                self.values[name] = AFTER
                await self.store.hset(RECORDS, name, f"0:{AFTER}")
            else:
                await self.put(name, AFTER)

    def went_back(self, sequence: int, **values: str) -> None:
        """Go on from what the store holds now: these records are at their first revision."""
        self.sequence = sequence
        self.values |= values
        self.revisions |= dict.fromkeys(values, 1)


@pytest.fixture
async def source(server: str) -> AsyncIterator[Source]:
    async with commands(server) as store:
        yield Source(store)


def version(event: CloudEvent) -> Version:
    data = event.get_data()
    assert isinstance(data, dict)
    return str(event.get_subject()), int(data["revision"]), str(data["record"]["value"])


def fallen(handled: list[Version]) -> list[Version]:
    """What was handled after a later revision of its record with the same value, which here is one generation."""
    highest, found = defaultdict[tuple[str, str], int](int), list[Version]()
    for subject, revision, value in handled:
        if revision < highest[subject, value]:
            found.append((subject, revision, value))
        highest[subject, value] = max(highest[subject, value], revision)
    return found


def state_of(handled: list[Version]) -> dict[str, str]:
    return {subject: value for subject, _, value in handled}


async def is_done(store: Redis) -> bool:
    return await store.hget(STATE, "bootstrap") == b"done"


async def handle_until_settled(consumer: Consumer, source: Source, handled: list[Version]) -> None:
    """Handle events until the bootstrap is of the source's generation and the group has read everything."""

    async def is_done_or_settled(event: asyncio.Task[CloudEvent]) -> bool:
        if event.done():
            return True
        if await source.store.hget(STATE, "generation") != source.generation.encode():
            return False
        groups: Any = await source.store.xinfo_groups(STREAM)
        return await is_done(source.store) and groups[0]["lag"] in {0, None} and groups[0]["pending"] == 0

    while True:
        async with waiting(consumer) as event:
            await until(partial(is_done_or_settled, event), "an event, or the end")
            if not event.done():
                return
            handled.append(version(event.result()))


@pytest.mark.parametrize("silent", [True, False], ids=["silent", "published"])
@pytest.mark.parametrize("acknowledged", [4, 14, 25], ids=["first page", "middle page", "complete"])
async def test_a_reset_begins_the_bootstrap_again(
    server: str, source: Source, acknowledged: int, *, silent: bool
) -> None:
    """A member that is gone when the feed is reset leaves nothing that hides a record of the next generation.

    Its bootstrap may have been at any page, or complete. The next reading of the feed may have published nothing.
    """
    await source.fill()
    handled: list[Version] = []
    async with serving(RecordsApi(source.store)) as api:
        async with Consumer(server, FEED, "g", "a", bootstrap=True, api=api, ack=False) as consumer:
            events = [await within(anext(consumer)) for _ in range(acknowledged)]
            await consumer.ack(events[-1])
        assert await is_done(source.store) is (acknowledged == len(NAMES))
        handled += map(version, events)
        await source.reset(silent=silent)
        async with Consumer(server, FEED, "g", "a", bootstrap=True, api=api) as consumer:
            await handle_until_settled(consumer, source, handled)
    assert state_of(handled) == source.values
    assert fallen(handled) == []
    assert not await source.store.exists(REVISIONS)


async def test_a_member_that_reads_notices_a_reset(server: str, source: Source) -> None:
    """A silent reset after a complete bootstrap is noticed by a member that waits for events, once for each reset."""
    await source.fill()
    handled: list[Version] = []
    api = RecordsApi(source.store)
    async with (
        serving(api) as url,
        Consumer(server, FEED, "g", "a", bootstrap=True, api=url, lease=SHORT, block=SHORT) as consumer,
    ):
        await handle_until_settled(consumer, source, handled)
        for number in (1, 2):
            pages = len(api.pages)
            await source.reset(silent=True)
            await handle_until_settled(consumer, source, handled)
            assert len(handled) == (number + 1) * len(NAMES)
            assert len(api.pages) == pages + 3
        await source.put("K003", "live")
        handled.append(version(await within(anext(consumer))))
    assert state_of(handled) == source.values


async def test_a_question_that_is_cancelled_cancels_no_caller(server: str, source: Source) -> None:
    """A question for the generation that something else cancels counts as one without an answer."""
    await source.fill()
    handled: list[Version] = []
    api = RecordsApi(source.store)
    async with (
        serving(api) as url,
        Consumer(server, FEED, "g", "a", bootstrap=True, api=url, lease=SHORT, block=SHORT) as consumer,
    ):
        await handle_until_settled(consumer, source, handled)
        api.may_answer.clear()
        async with waiting(consumer) as event:
            asking = await until(_questions, "the question")
            asking[0].cancel()
            await until(lambda: event.done() or _questions() not in ([], asking), "the next question")
            assert not event.done()
            api.may_answer.set()
            await source.put("K003", "live")
            assert version(await within(event)) == ("K003", 2, "live")


def _questions() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task.get_name() == "the generation of a feed"]


async def test_a_silent_first_reading_is_waited_for(server: str, source: Source) -> None:
    """No page is used while records come that neither it nor an event holds; a complete bootstrap waits likewise."""
    await source.fill()
    handled: list[Version] = []
    api = RecordsApi(source.store, is_silent=True)
    async with (
        serving(api) as url,
        Consumer(server, FEED, "g", "a", bootstrap=True, api=url, lease=SHORT, block=SHORT) as consumer,
    ):
        async with waiting(consumer) as event:
            await until(lambda: len(api.read) > 1 or None, "a second question")
            assert not event.done()
            await source.store.hset(RECORDS, "K00A", f"0:{BEFORE}")
            source.values["K00A"] = BEFORE
            api.is_silent = False
            handled.append(version(await within(event)))
        await handle_until_settled(consumer, source, handled)
        assert state_of(handled) == source.values
        api.is_silent, count = True, len(handled)
        del source.values["K00A"]
        await source.reset(silent=True)
        async with waiting(consumer) as event:
            read = len(api.read)
            await until(lambda: len(api.read) > read + 2 or None, "two answers")
            assert not event.done()
            assert await is_done(source.store)
            api.is_silent = False
            handled.append(version(await within(event)))
        await handle_until_settled(consumer, source, handled)
    assert state_of(handled[count:]) == source.values


class RestoredServer:
    """A server that can go back to a copy of its files."""

    def __init__(self, directory: Path) -> None:
        self.url = f"redis://127.0.0.1:{free_port()}"
        self._log, self._copy = directory / "appendonlydir", directory / "copy"
        self._directory = directory
        self._running = ExitStack()

    def __enter__(self) -> Self:
        port = self.url.rpartition(":")[2]
        options: dict[str, str | tuple[str, ...]] = {"port": port, "bind": "127.0.0.1"}
        options["unixsocket"] = str(self._directory / "s")
        self._running.enter_context(running("valkey", self._directory, options=options))
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def copy(self) -> None:
        """Keep what the files hold; each write is in them before it is answered."""
        shutil.copytree(self._log, self._copy)

    async def go_back(self, store: Redis) -> None:
        """Kill the server, and start it again with the copy."""
        self._running.close()
        shutil.rmtree(self._log)
        self._copy.rename(self._log)
        self.__enter__()
        await store.connection_pool.disconnect()


@pytest.fixture
async def going_back(tmp_path: Path) -> AsyncIterator[tuple[RestoredServer, Source]]:
    with RestoredServer(tmp_path) as server:
        async with commands(server.url) as store:
            yield server, Source(store)


async def test_a_page_from_before_the_store_went_back_is_void(going_back: tuple[RestoredServer, Source]) -> None:
    """A page that holds what the store has lost is not handed out, and the bootstrap begins again.

    The source has the former value again, so no event will correct the record.
    """
    server, source = going_back
    await source.fill()
    api = RecordsApi(source.store)
    handled: list[Version] = []
    async with (
        serving(api) as url,
        Consumer(server.url, FEED, "g", "a", bootstrap=True, api=url, block=SHORT) as consumer,
    ):
        handled += [version(await within(anext(consumer))) for _ in range(10)]
        api.answers = [503]
        async with waiting(consumer):
            await until(lambda: len(api.asked) > 1 or None, "the second page")
            server.copy()
            await source.put("K015", "lost")
            api.may_answer.clear()
            await until(lambda: len(api.read) > 1 or None, "the second page once more")
        await server.go_back(source.store)
        source.went_back(25, K015=BEFORE)
        api.may_answer.set()
        await handle_until_settled(consumer, source, handled)
    assert "lost" not in {value for _, _, value in handled}
    assert state_of(handled) == source.values


@pytest.mark.parametrize("restarted", [False, True], ids=["goes on", "another member"])
async def test_a_bootstrap_is_exact_although_the_store_went_back(
    going_back: tuple[RestoredServer, Source], *, restarted: bool
) -> None:
    """Versions of the first page and of events that were handled, and that the store has lost, are corrected.

    The source has the former values again, so no event will do that.
    """
    server, source = going_back
    await source.fill()
    handled: list[Version] = []
    async with serving(RecordsApi(source.store)) as url:
        async with Consumer(server.url, FEED, "g", "a", bootstrap=True, api=url, ack=False) as consumer:
            events = [await within(anext(consumer)) for _ in range(3)]
            await consumer.ack(events[-1])
        consumer = Consumer(server.url, FEED, "g", "a", bootstrap=True, api=url, batch=1, block=SHORT, ack=restarted)
        async with consumer:
            async with waiting(consumer) as first:
                handled.append(version(await within(first)))
                server.copy()
            await source.put("K001", "lost")
            await source.put("K007", "lost")
            while {subject for subject, _, value in handled if value == "lost"} != {"K001", "K007"}:
                handled.append(version(await within(anext(consumer))))
            await server.go_back(source.store)
            source.went_back(25, K001=BEFORE, K007=BEFORE)
            while not restarted and state_of([*map(version, events), *handled]) != source.values:
                handled.append(version(await within(anext(consumer))))
        if restarted:
            async with Consumer(server.url, FEED, "g", "a", bootstrap=True, api=url) as consumer:
                await handle_until_settled(consumer, source, handled)
    found = state_of([*map(version, events), *handled])
    assert found == source.values
