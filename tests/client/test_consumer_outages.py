"""Laws of :class:`poller.client.Consumer` while its store is away, fails over, or has lost something."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, Final, cast
from unittest.mock import patch

import pytest
from redis import Redis
from redis.asyncio.cluster import RedisCluster
from redis.exceptions import AuthenticationError, NoPermissionError
from redis.exceptions import ConnectionError as Disconnected

from poller.client import Consumer, Gap
from poller.client.connection import connect
from poller.client.feed_reader import ExclusiveReader, FeedReader, HandedEvent, Phase, ReaderSettings, SharedReader
from poller.client.group_store import ClaimedEntries, GroupState, GroupStore, LeaseHolder, NewEntries
from poller.redis.client import commands
from tests.client.published import FEED, STATE, STREAM, event_of, number_of, publish
from tests.client.test_bootstrap_resets import RestoredServer
from tests.client.test_consumer import pending, read, waiting
from tests.harness.waiting import turns, until, within
from tests.harness.wire import wired
from tests.servers import free_port, running
from tests.stores import Stores, looking

MODES: Final = pytest.mark.parametrize("exclusive", [True, False])
SHORT: Final = timedelta(milliseconds=400)


@pytest.fixture
def store(server: str) -> Iterator[Any]:
    with looking(server) as client:
        yield client


@MODES
async def test_scripts_that_were_flushed_are_sent_again(server: str, store: Any, *, exclusive: bool) -> None:
    """A server that has forgotten all scripts is sent them again, at any command."""
    publish(store, *range(1, 7))
    async with Consumer(server, FEED, "g", "a", exclusive=exclusive, batch=2) as consumer:
        for number in range(1, 7):
            store.script_flush()
            assert await read(consumer, 1) == [number]


@MODES
async def test_a_group_that_was_destroyed_goes_on_where_it_stood(server: str, store: Any, *, exclusive: bool) -> None:
    """A destroyed group is created again after the last entry that was acknowledged, while reading and at the start."""
    publish(store, *range(1, 7))
    async with Consumer(server, FEED, "g", "a", exclusive=exclusive, batch=2) as consumer:
        for event in [await within(anext(consumer)) for _ in range(2)]:
            await consumer.ack(event)
        store.xgroup_destroy(STREAM, "g")
        assert await read(consumer, 2) == [3, 4]
    store.xgroup_destroy(STREAM, "g")
    async with Consumer(server, FEED, "g", "a", exclusive=exclusive) as consumer:
        assert (await read(consumer, 2))[-2:] == [4, 5]


@MODES
async def test_an_emptied_store_is_read_from_its_beginning(server: str, store: Any, *, exclusive: bool) -> None:
    """A store that was emptied, or has another stream, is read from its beginning: nothing of it is passed over."""
    publish(store, 1, 2)
    async with Consumer(server, FEED, "g", "a", exclusive=exclusive, block=SHORT) as consumer:
        assert await read(consumer, 2) == [1, 2]
        store.flushall()
        store.xadd(STREAM, {"data": event_of(1, event_id="another")}, id="5-1")
        assert (await within(anext(consumer))).get_id() == "another"
        store.delete(STREAM)
        store.xadd(STREAM, {"data": event_of(1, event_id="third")}, id="3-1")
        assert (await within(anext(consumer))).get_id() == "third"


async def test_what_an_emptied_store_has_lost_is_reported(server: str, store: Any) -> None:
    """Events that were not read, and that the store has lost with the group, are a gap after the last known one."""
    publish(store, 1, 2, 3)
    async with Consumer(server, FEED, "g", "a", block=SHORT) as consumer:
        assert await read(consumer, 3) == [1, 2, 3]
        store.flushall()
        publish(store, 6, 7)
        with pytest.raises(Gap, match="2 events after sequence 3 were") as lost:
            await within(anext(consumer))
        assert (lost.value.after, lost.value.before) == (3, 6)
        assert await read(consumer, 2) == [6, 7]


@MODES
async def test_a_store_that_is_away_is_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, exclusive: bool
) -> None:
    """A server that is killed and started again costs no event; one line is logged, and not one a try."""
    port = str(free_port())
    options: dict[str, str | tuple[str, ...]] = {"port": port, "bind": "127.0.0.1", "unixsocket": str(tmp_path / "s")}
    url = f"redis://127.0.0.1:{port}"
    consumer = Consumer(url, FEED, "g", "a", exclusive=exclusive, batch=3, block=SHORT)
    with running("valkey", tmp_path, options=options), Redis.from_url(url) as store:
        publish(store, *range(1, 9))
        await consumer.__aenter__()
        assert await read(consumer, 3) == [1, 2, 3]
    async with waiting(consumer) as fourth:
        await until(lambda: "redis unavailable" in caplog.text or None, "the warning")
        with running("valkey", tmp_path, options=options), Redis.from_url(url) as store:
            assert number_of(await within(fourth)) == 4
            assert await read(consumer, 4) == [5, 6, 7, 8]
            await consumer.__aexit__()
            assert pending(store) == 1
    assert sum("redis unavailable" in line.getMessage() for line in caplog.records) <= 3


@MODES
async def test_a_full_consumer_goes_on_after_an_outage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, exclusive: bool
) -> None:
    """A member that may have one event unacknowledged goes on, although the store was away for that acknowledgement."""
    port = str(free_port())
    options: dict[str, str | tuple[str, ...]] = {"port": port, "bind": "127.0.0.1", "unixsocket": str(tmp_path / "s")}
    url = f"redis://127.0.0.1:{port}"
    consumer = Consumer(url, FEED, "g", "a", exclusive=exclusive, batch=1, most_unacknowledged=1, block=SHORT)
    with running("valkey", tmp_path, options=options), Redis.from_url(url) as store:
        publish(store, 1, 2)
        await consumer.__aenter__()
        assert await read(consumer, 1) == [1]
    async with waiting(consumer) as second:
        await until(lambda: "redis unavailable" in caplog.text or None, "the warning")
        with running("valkey", tmp_path, options=options):
            assert number_of(await within(second)) == 2
            await consumer.__aexit__()


@MODES
async def test_lost_replies_lose_no_event(server: str, store: Any, *, exclusive: bool) -> None:
    """Connections that break within an answer, whichever it is, cost no event and no order."""
    total, chance = 150, Random(7)
    publish(store, *range(1, total + 1))
    found: list[int] = []
    async with (
        wired(server.partition("?")[0]) as wire,
        Consumer(wire.url, FEED, "g", "a", exclusive=exclusive, batch=5, lease=timedelta(minutes=1)) as consumer,
    ):
        while set(found) != set(range(1, total + 1)):
            losses = len(wire.losses)
            wire.cut(after=chance.randrange(1500))
            async with waiting(consumer) as event:
                await until(lambda: event.done() or len(wire.losses) > losses, "a loss")  # noqa: B023 -- it is awaited
                wire.mend()
                found.append(number_of(await within(event)))
        assert len(wire.losses) > 10
    assert not exclusive or found == list(range(1, total + 1))
    assert len(found) < 2 * total


@pytest.mark.parametrize(("state", "exclusive"), [("read-only", True), ("read-only", False), ("full", True)])
async def test_a_store_that_takes_no_writes_is_waited_for(tmp_path: Path, state: str, *, exclusive: bool) -> None:
    """A server that is a replica for a while, or has no memory left for a lease's position, costs no event."""
    with running("valkey", tmp_path, tcp=True) as server, Redis.from_url(server.url) as store:
        publish(store, 1, 2)
        refuses, accepts = ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE")
        if state == "full":
            refuses, accepts = ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0")
        async with Consumer(server.url, FEED, "g", "a", exclusive=exclusive, batch=1, block=SHORT) as consumer:
            assert await read(consumer, 1) == [1]
            store.execute_command(*refuses.split())
            async with waiting(consumer) as second:
                await until(lambda: _refusals(store) or None, "a refusal")
                store.execute_command(*accepts.split())
                assert number_of(await within(second)) == 2
        assert pending(store) == 1


def _refusals(store: Any) -> int:
    return sum(one["count"] for name, one in store.info("errorstats").items() if name.endswith(("READONLY", "OOM")))


async def test_entries_of_which_the_answer_was_lost_come_first(server: str, store: Any) -> None:
    """Entries that a member was given without knowing it, as by a repeated command, come before anything newer."""
    publish(store, 1)
    async with Consumer(server, FEED, "g", "a", batch=1) as consumer:
        assert await read(consumer, 1) == [1]
        (entry,) = publish(store, 2)
        store.xreadgroup("g", "a", {STREAM: ">"})
        store.hset(STATE, "read", entry)
        publish(store, 3)
        assert await read(consumer, 2) == [2, 3]


async def test_an_earlier_version_that_comes_again_is_handed_out(tmp_path: Path) -> None:
    """After a store went back, the version of before the last one is no repeat: the source may have it now.

    The last one of its record is, if it comes again.
    """
    with RestoredServer(tmp_path) as server:
        async with commands(server.url) as store, Consumer(server.url, FEED, "g", "a", block=SHORT) as consumer:

            async def handled(sequence: int, subject: str, event_id: str) -> str:
                event = event_of(sequence, subject=subject, event_id=event_id)
                await store.xadd(STREAM, {"data": event})
                return (await within(anext(consumer))).get_id()

            assert await handled(1, "K", "former") == "former"
            async with waiting(consumer):
                await until(lambda: _is_acknowledged(store), "the acknowledgement")
            server.copy()
            for sequence, subject, event_id in ((2, "K", "between"), (3, "K", "last"), (4, "L", "other")):
                assert await handled(sequence, subject, event_id) == event_id
            await server.go_back(store)
            await store.xadd(STREAM, {"data": event_of(2, subject="L", event_id="other")})
            assert await handled(3, "K", "between") == "between"
            assert await handled(4, "K", "last") == "last"


async def test_what_another_member_may_have_followed_is_no_repeat(server: str, store: Any) -> None:
    """A version that comes again is handed out where another member has read the feed since it was handled here."""
    former = {"data": event_of(1, subject="K", event_id="former")}
    store.xadd(STREAM, former)
    async with Consumer(server, FEED, "g", "a", block=SHORT) as consumer:
        assert (await within(anext(consumer))).get_id() == "former"
        async with waiting(consumer):
            await until(lambda: pending(store) == 0, "the acknowledgement")
        store.hdel(STATE, "token")
        async with Consumer(server, FEED, "g", "b") as other:
            store.xadd(STREAM, {"data": event_of(2, subject="K", event_id="last")})
            assert (await within(anext(other))).get_id() == "last"
            async with waiting(other):
                await until(lambda: pending(store) == 0, "the acknowledgement")
        store.xadd(STREAM, former)
        assert (await within(anext(consumer))).get_id() == "former"


async def _is_acknowledged(store: Any) -> bool | None:
    found: Any = await store.xpending(STREAM, "g")
    return found["pending"] == 0 or None


class _Watched(GroupStore):
    """A group that notes in which phase its reader waits for each answer."""

    reader: FeedReader

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.phases: list[Phase] = []

    async def read(self, *, after: str = ">", most: int, known: str = "") -> NewEntries:
        self.phases.append(self.reader.phase)
        return await super().read(after=after, most=most, known=known)

    async def claim(self, *, begin: str, idle: timedelta, most: int) -> ClaimedEntries:
        self.phases.append(self.reader.phase)
        return await super().claim(begin=begin, idle=idle, most=most)


@pytest.mark.parametrize("kind", [ExclusiveReader, SharedReader])
async def test_a_reader_that_waits_for_an_answer_has_no_place(
    server: str, store: Any, kind: type[ExclusiveReader | SharedReader]
) -> None:
    """While an answer is awaited, which may be lost, a reader stands where it asks for all that is not acknowledged."""
    publish(store, 1, 2)
    settings = ReaderSettings(lease=timedelta(minutes=1), batch=1, most_unsettled=9, start="0-0")
    token = "t" if kind is ExclusiveReader else ""
    async with commands(server) as client:
        group = _Watched(client, prefix="poller", feed=FEED, group="g", name="a", token=token, lease=settings.lease)
        reader = group.reader = kind(FEED, group, settings)
        for _ in range(2):
            await reader.fill()
            reader.hand_out()
    assert len(group.phases) > 2
    assert set(group.phases) == {Phase.STANDBY}


class _Slow(GroupStore):
    """A group of which some questions wait: ``claim`` is sent late, the answers to the others are late."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.slow: frozenset[str] = frozenset()
        self.waits, self.go_on = asyncio.Event(), asyncio.Event()

    async def acquire(self, *, start: str, known: str) -> GroupState | LeaseHolder:
        found = await super().acquire(start=start, known=known)
        await self._wait("acquire")
        return found

    async def claim(self, *, begin: str, idle: timedelta, most: int) -> ClaimedEntries:
        await self._wait("claim")
        return await super().claim(begin=begin, idle=idle, most=most)

    async def acknowledge(self, entries: Iterable[str], *, place: str = "", sequence: int | None = None) -> None:
        await super().acknowledge(entries, place=place, sequence=sequence)
        await self._wait("acknowledge")

    async def _wait(self, where: str) -> None:
        if where in self.slow:
            self.waits.set()
            await self.go_on.wait()
            self.go_on.clear()


@pytest.mark.parametrize("slow", [("acquire",), ("claim",), ("acquire", "acknowledge")], ids=" and ".join)
async def test_what_is_acknowledged_while_the_rest_is_asked_for_is_not_missing(
    server: str, store: Any, slow: tuple[str, ...]
) -> None:
    """An acknowledgement that waits for others may be sent while a reader finds out where it is: no gap comes of it."""
    publish(store, 1, 2, 3)
    settings = ReaderSettings(lease=timedelta(minutes=1), batch=9, most_unsettled=9, start="0-0")
    async with commands(server) as client:
        group = _Slow(client, prefix="poller", feed=FEED, group="g", name="a", token="t", lease=settings.lease)  # noqa: S106 -- of a test
        reader = ExclusiveReader(FEED, group, settings)
        await reader.fill()
        reader.finish(reader.hand_out())
        await reader.settle()
        reader.finish(reader.hand_out())  # which is not acknowledged yet
        reader.doubt()
        group.slow = frozenset(slow)
        asking = asyncio.create_task(reader.fill())
        await within(group.waits.wait())
        settling = asyncio.create_task(reader.settle())
        for _ in slow:
            for _ in range(20):  # enough for what does not wait
                await turns(5)
                store.ping()
            group.go_on.set()
        await within(asking)
        assert await within(settling)
        assert [number_of(cast("HandedEvent", one).event) for one in reader.batch] == [3]
    assert pending(store) == 1


async def test_a_refusal_is_raised(tmp_path: Path) -> None:
    """A wrong password, or missing permissions, is an error and not waited for."""
    with running("valkey", tmp_path, tcp=True) as server, Redis.from_url(server.url) as store:
        publish(store, 1)
        store.execute_command("ACL", "SETUSER", "few", "on", ">x", "~*", "+ping")
        place = server.url.partition("://")[2]
        refusals: list[tuple[str, type[Exception]]] = [("few:wrong", AuthenticationError), ("few:x", NoPermissionError)]
        for login, expected in refusals:
            with pytest.raises(expected):
                async with Consumer(f"redis://{login}@{place}", FEED, "g", "a") as consumer:
                    await within(anext(consumer))


async def test_a_failover_loses_no_event(stores: Stores) -> None:
    """Behind Sentinels, a consumer goes on at the next primary."""
    url = stores.emptied("sentinel")
    with looking(url) as store:
        publish(store, *range(1, 6))
        store.wait(1, 5000)
    async with Consumer(url, FEED, "g", "a", block=SHORT, batch=2) as consumer:
        found = await read(consumer, 2)
        await asyncio.to_thread(stores.sentinels.fail_over)
        while set(found) != set(range(1, 6)):
            found += await read(consumer, 1)
    assert found == sorted(found)


async def test_a_connection_to_a_cluster_that_is_closed_before_a_command_is_one_that_is_away() -> None:
    """A failover closes connections that other tasks are about to use; redis-py says so with an AttributeError."""
    lost = AttributeError("'NoneType' object has no attribute 'writelines'")
    client = connect("redis+cluster://127.0.0.1:7000")
    with patch.object(RedisCluster, "execute_command", side_effect=lost), pytest.raises(Disconnected, match="closed"):
        await client.execute_command("GET", "k")
