"""A client of a real cluster: every command to its slot, and none carried out twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from redis.asyncio import Redis
from redis.crc import key_slot
from redis.exceptions import ClusterDownError
from redis.exceptions import ConnectionError as Unreachable

from poller.clock import Clock
from poller.errors import StoreRefused, StoreUnavailable
from poller.redis.client import CONNECTIONS, REPLY_TIMEOUT, commands, connect, scattered, servers
from poller.redis.cluster import Address, ClusterClient, ClusterNodes, slot_of, slots_of
from poller.redis.errors import translated
from poller.redis.single import single_client
from tests.harness.clock import StubClock
from tests.harness.cluster import Cluster
from tests.harness.waiting import strain, turns, until
from tests.proxy import Proxy, proxied

if TYPE_CHECKING:
    from tests.stores import Stores


APPEND = "return redis.call('RPUSH', KEYS[1], ARGV[1])"
KEYS = [f"k{number}" for number in range(60)]  # on all primaries


@pytest.fixture
def url(stores: Stores) -> str:
    return stores.emptied("cluster")


@pytest.fixture
def cluster(url: str, stores: Stores) -> Cluster:
    return stores.cluster


@pytest.fixture
async def client(url: str) -> AsyncIterator[Redis]:
    async with commands(url) as one:
        yield one


async def append(client: Redis, key: str = "log") -> int:
    """A naive script: appends each time it is run."""
    running: Awaitable[int] = client.execute_command("EVAL", APPEND, 1, key, "x")  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
    with translated(client):
        return await running


def piped(client: Redis, *commands: tuple[str | int, ...], transaction: bool = False) -> Awaitable[list[Any]]:
    together = client.pipeline(transaction=transaction)
    for command in commands:
        together.execute_command(*command)
    return together.execute()


async def test_every_key_is_found(client: Redis) -> None:
    """One by one, by script, and in a pipeline whose answers come in the order of its commands."""
    assert scattered(client)
    assert len(await servers(client)) == 3
    for number, key in enumerate(KEYS):
        assert await client.set(key, number)
    asking = client.pipeline(transaction=False)
    for key in KEYS:
        asking.get(key)
    assert await asking.execute() == [b"%d" % number for number in range(len(KEYS))]
    script = client.register_script("return redis.call('INCR', KEYS[1])")
    assert [await script([key]) for key in KEYS] == list(range(1, len(KEYS) + 1))


async def test_an_error_in_a_pipeline_is_raised(client: Redis) -> None:
    """The first one, whosever answer it is, unless all answers are wanted."""
    await client.set("k1", "text")
    asking = client.pipeline(transaction=False)
    for key in KEYS[:5]:
        asking.lpush(key, 1)
    with pytest.raises(StoreRefused, match="WRONGTYPE"), translated(client):
        await asking.execute()
    assert [await client.llen(key) for key in (KEYS[0], *KEYS[2:5])] == [1] * 4
    assert await piped(client) == []


async def test_a_transaction_has_one_slot(client: Redis) -> None:
    """Where its keys lie apart it is refused, and nothing of it is done."""
    together = (("SET", "{a}1", "x"), ("GET", "{a}1"), ("PING",))
    assert await piped(client, *together, transaction=True) == [True, b"x", True]
    with pytest.raises(StoreUnavailable), translated(client):  # MOVED without end, as far as one can tell
        await piped(client, ("SET", "a", "x"), ("SET", "b", "x"), transaction=True)
    assert await client.exists("a") + await client.exists("b") == 0
    with pytest.raises(StoreRefused, match="slot"), translated(client):
        await client.mget("a", "b")


async def test_what_goes_by_no_server_goes_nowhere(client: Redis) -> None:
    """Where redirections could not be followed nothing is sent."""
    with pytest.raises(RuntimeError, match="execute_command"):
        await client.pipeline(transaction=True).watch("k")


async def test_a_slot_that_has_moved_is_followed(client: Redis, cluster: Cluster) -> None:
    """A moved slot is followed by a command, a new script, a transaction and a pipeline."""
    script = client.register_script(APPEND)
    for key in ("one", "script", "together", "spread"):
        await script([key], ["x"])
        await asyncio.to_thread(cluster.move_slot, key)
    assert await append(client, "one") == 2
    assert await script(["script"], ["x"]) == 2
    assert await piped(client, ("RPUSH", "together", "x"), ("LLEN", "together"), transaction=True) == [2, 2]
    assert await piped(client, ("RPUSH", "spread", "x"), ("LLEN", "spread")) == [2, 2]


async def test_a_slot_between_two_servers(url: str, cluster: Cluster) -> None:
    """A key is asked for where it is; what needs keys of both waits until they are together, and is done once."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            await asyncio.to_thread(cluster.move_slot, "{s}", to)

    async with _client(cluster, clock=StubClock(sleep=sleep)) as client:
        for key in ("{s}1", "{s}2"):
            await client.set(key, "x")
        to = next(one for one in cluster.primaries if one is not cluster.primary_of("{s}"))
        await asyncio.to_thread(cluster.begin_move, "{s}", to)
        assert await asyncio.to_thread(cluster.move_keys, "{s}", to, most=1) == 1
        assert [await client.get(key) for key in ("{s}1", "{s}2")] == [b"x", b"x"]
        assert await piped(client, ("GET", "{s}1"), ("GET", "{s}2")) == [b"x", b"x"]
        script = client.register_script(
            "redis.call('RPUSH', KEYS[3], 'x') return redis.call('EXISTS', KEYS[1], KEYS[2])"
        )
        assert await script(["{s}1", "{s}2", "{s}log"]) == 2
        assert await client.llen("{s}log") == 1
    assert pauses == [0.05, 0.1]


async def test_a_move_that_does_not_end_is_told(cluster: Cluster) -> None:
    """After some tries: nothing was carried out, and trying again may help."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async with _client(cluster, clock=StubClock(sleep=sleep)) as client:
        await client.set("{s}1", "x")
        to = next(one for one in cluster.primaries if one is not cluster.primary_of("{s}"))
        await asyncio.to_thread(cluster.begin_move, "{s}", to)
        try:
            with pytest.raises(StoreUnavailable), translated(client):
                await client.mget("{s}1", "{s}2")
            with pytest.raises(StoreUnavailable), translated(client):
                await piped(client, ("SET", "{s}2", "x"), transaction=True)
        finally:
            await asyncio.to_thread(cluster.move_slot, "{s}", to)
        assert not await client.exists("{s}2")
    assert sum(pauses) < 2


async def test_a_new_primary_is_found_within_a_second(client: Redis, cluster: Cluster) -> None:
    """After a primary is killed, commands fail at once, and work as soon as there is a new one."""
    assert await append(client) == 1
    await asyncio.to_thread(cluster.settled)
    await asyncio.to_thread(cluster.primary_of("log").kill)
    with pytest.raises(StoreUnavailable):
        await append(client)
    await asyncio.to_thread(cluster.fail_over, "log", "TAKEOVER")
    begun = time.monotonic()
    length = await until(lambda: append(client), "a new primary", despite=(StoreUnavailable,))
    assert time.monotonic() - begun < strain()
    assert length == 2
    await asyncio.to_thread(cluster.empty)


async def test_a_lost_reply_is_one_execution(cluster: Cluster) -> None:
    """Law: whatever becomes of a reply, its command is not sent again."""
    async with AsyncExitStack() as stack:
        proxies = {
            node.port: await stack.enter_async_context(proxied(f"redis://127.0.0.1:{node.port}"))
            for node in cluster.nodes
        }
        client = await stack.enter_async_context(_client(cluster, proxies=proxies))
        for proxy in proxies.values():
            proxy.lose_reply(to=b"EVAL", times=20)
            proxy.reset(to=b"\r\nSET\r\n", times=20)
        with pytest.raises(StoreUnavailable):
            await append(client)
        with pytest.raises(StoreUnavailable), translated(client):
            await client.set("a", "x")
        with pytest.raises(StoreUnavailable), translated(client):
            await piped(client, ("EVAL", APPEND, 1, "b", "x"))
        assert await client.llen("log") == await client.llen("b") == 1
        assert not await client.exists("a")
        assert sum(proxy.times(b"EVAL") for proxy in proxies.values()) == 2


async def test_nobody_answers() -> None:
    """If no server answers, each concurrent command fails soon, with the addresses and without the password."""
    async with commands("redis+cluster://u:hunter2@127.0.0.1:1,127.0.0.1:2") as client:
        for told in await asyncio.gather(*(append(client) for _ in range(500)), return_exceptions=True):
            assert isinstance(told, StoreUnavailable)
            assert "127.0.0.1:1,127.0.0.1:2: " in str(told)
            assert "hunter2" not in str(told)


async def test_a_server_that_is_no_cluster(stores: Stores) -> None:
    """It is refused, as is a user whom the cluster does not know."""
    async with proxied(stores.emptied("valkey")) as proxy, commands(f"redis+cluster://{proxy.place}") as client:
        with pytest.raises(StoreRefused, match="cluster support disabled"):
            await append(client)


async def test_a_stranger_is_refused(url: str) -> None:
    """A wrong password will be wrong the next time, too."""
    async with commands(url.replace("://", "://nobody:hunter2@")) as client:
        with pytest.raises(StoreRefused) as told:
            await append(client)
    assert "hunter2" not in str(told.value)


async def test_more_commands_than_connections(client: Redis) -> None:
    """Each waits for its turn, and no server sees more connections than agreed."""
    answers = await asyncio.gather(*(client.incr("n") for _ in range(3 * CONNECTIONS)))
    assert sorted(answers) == list(range(1, 3 * CONNECTIONS + 1))
    for server in await servers(client):
        ours = [one for one in await server.client_list() if one["name"] == "poller"]
        assert len(ours) <= CONNECTIONS


async def test_a_cancellation_is_never_swallowed(client: Redis) -> None:
    """Law: a command that is cancelled at any step ends, and the next one gets its own answer."""
    loop, swallowed = asyncio.get_running_loop(), 0

    def cancel_after(steps: int, task: asyncio.Future[list[Any]], asked: list[bool]) -> None:
        if steps:
            loop.call_soon(cancel_after, steps - 1, task, asked)
        else:
            asked.append(task.cancel())

    for steps in range(40):
        asked: list[bool] = []
        task = asyncio.ensure_future(piped(client, ("SET", "a", steps), ("SET", "b", steps)))
        cancel_after(steps, task, asked)
        await asyncio.wait({task})
        swallowed += asked == [True] and not task.cancelled()
    assert swallowed == 0
    assert await client.set("a", "x")
    assert await client.get("a") == b"x"


async def test_a_silent_server_is_waited_for_as_long_as_said(url: str, cluster: Cluster) -> None:
    """It is stopped, not gone: the command ends with its timeout, others go on, and it is asked again once it wakes."""
    async with connect(url, reply_timeout=timedelta(milliseconds=200)) as client:
        await append(client)
        node = cluster.primary_of("log")
        elsewhere = next(key for key in KEYS if cluster.primary_of(key) is not node)
        node.stop()
        try:
            with pytest.raises(StoreUnavailable, match="Timeout"):
                await append(client)
            assert await append(client, elsewhere) == 1
        finally:
            node.go_on()
        assert await append(client) > 1


def _client(cluster: Cluster, *, proxies: dict[int, Proxy] | None = None, clock: Clock | None = None) -> ClusterClient:
    """One whose way to the servers, or whose pauses, are the test's own."""

    def make(one: Address) -> Redis:
        port = int(proxies[one.port].place.rpartition(":")[2]) if proxies else one.port
        return single_client({"host": one.host, "port": port}, reply_timeout=REPLY_TIMEOUT)

    return ClusterClient([Address("127.0.0.1", cluster.nodes[0].port)], make, clock=clock or Clock())


# Who has which slots is asked seldom, of whoever may know, by one at a time.

A, B, C = (Address("127.0.0.1", port) for port in (1, 2, 3))


@dataclass
class Told:
    """Servers that tell what they are told to, and write down who was asked and who was closed."""

    answers: dict[Address, object]
    asked: list[Address] = field(default_factory=list)
    closed: list[Address] = field(default_factory=list)
    used: set[Address] = field(default_factory=set)

    def client(self, address: Address) -> Redis:
        async def execute_command(*_: str) -> object:
            self.asked.append(address)
            await turns()
            answer = self.answers[address]
            if isinstance(answer, Exception):
                raise answer
            return answer

        async def aclose() -> None:
            self.closed.append(address)

        def counts() -> list[tuple[int, object]]:
            return [(1, {}), (int(address in self.used), {})]

        pool = SimpleNamespace(get_connection_count=counts)
        made: Any = SimpleNamespace(execute_command=execute_command, aclose=aclose, connection_pool=pool, at=address)
        return cast("Redis", made)


def slots(*primaries: Address) -> list[list[object]]:
    return [[place, place, [one.host.encode(), one.port]] for place, one in enumerate(primaries)]


async def test_many_at_once_ask_once() -> None:
    """Concurrent commands share one request for the slots; known slots are not requested again."""
    told = Told({A: slots(A, B)})
    nodes = ClusterNodes([A], told.client, clock=Clock())
    assert await asyncio.gather(*(nodes.primary_of(place % 2) for place in range(100))) == [A, B] * 50
    assert told.asked == [A]


async def test_doubts_are_looked_into_ten_times_a_second() -> None:
    """The slots are read at most ten times a second, and the last answer stays valid meanwhile."""
    told = Told({A: slots(A), B: slots(B)})
    times = [number / 100 for number in range(12)]
    now = times[0]
    nodes = ClusterNodes([A], told.client, clock=StubClock(monotonic=lambda: now))
    found = []
    for now in times:  # noqa: B007 -- the clock's
        found.append(await nodes.primary_of(0))
        nodes.moved(B)
    assert found == [A] * 10 + [B] * 2
    assert told.asked == [A, B]  # whoever was said to have it is asked, not the one that was wrong


async def test_whoever_failed_is_asked_last() -> None:
    """The server that failed is asked last; without any answer the last slots stay valid."""
    told = Told({A: slots(A, B), B: Unreachable("away"), C: Unreachable("away")})
    nodes = ClusterNodes([A, C], told.client, clock=StubClock(monotonic=map(float, count()).__next__))
    await nodes.primary_of(0)
    told.answers[A] = Unreachable("away")
    nodes.failed(A)
    assert await nodes.primary_of(0) == A
    assert told.asked == [A, B, C, A]
    assert await nodes.primary_of(None) == B


async def test_a_slot_of_nobody_is_down() -> None:
    """Which may be better the next time."""
    nodes = ClusterNodes([A], Told({A: slots(A)}).client, clock=Clock())
    with pytest.raises(ClusterDownError):
        await nodes.primary_of(7)


async def test_whoever_has_left_is_closed() -> None:
    """The client of a server that left is closed, unless a command still waits for it."""
    told = Told({A: slots(B, C), B: slots(B)}, used={C})
    nodes = ClusterNodes([A], told.client, clock=StubClock(monotonic=map(float, count()).__next__))
    assert [getattr(one, "at", None) for one in await nodes.primaries()] == [B, C]
    told.answers[A] = slots(B)
    for closed in ([], [C]):
        assert len(await nodes.primaries()) == 1
        assert told.closed == closed
        told.used.clear()
    await nodes.aclose()
    assert set(told.closed) == {A, B, C}


# A command belongs to the server that has the slot of its first key.

A, B, C = (Address("127.0.0.1", port) for port in (1, 2, 3))


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (("GET", "k"), "k"),
        (("get", b"k"), "k"),
        (("HSET", "{a}b", "f", "v"), "a"),
        (("XINFO GROUPS", "k"), "k"),
        (("XGROUP CREATE", "k", "g", "$"), "k"),
        (("MEMORY USAGE", "k"), "k"),
        (("OBJECT", "ENCODING", "k"), "k"),
        (("EVAL", "return 1", 2, "{k}1", "{k}2", "v"), "k"),
        (("EVALSHA", "0" * 40, "1", "k"), "k"),
        (("XREAD", "COUNT", 1, b"STREAMS", "k", "0"), "k"),
        (("XREADGROUP", "GROUP", "streams", "c", "streams", "k", ">"), "k"),
        (("DEL", 7), "7"),
    ],
)
def test_what_has_a_key_goes_by_it(command: tuple[Any, ...], key: str) -> None:
    """A command goes to its key's slot, wherever the key is in the command."""
    assert slot_of(command) == key_slot(key.encode())


@pytest.mark.parametrize(
    "command",
    [("PING",), ("INFO", "server"), ("CONFIG GET", "*"), ("EVAL", "return 1", 0), ("XREAD", "STREAMS"), ("SCAN", 0)]
)  # fmt: skip
def test_what_has_no_key_goes_anywhere(command: tuple[Any, ...]) -> None:
    """Also where it has other arguments."""
    assert slot_of(command) is None


def test_who_has_which_slots() -> None:
    """The slots are read in any order; a server that does not know its host has the one it was reached by."""
    answer = [[10, 20, [b"127.0.0.1", 2, b"id"], [b"127.0.0.1", 3, b"id"]], [0, 9, [b"", 1, b"id", []]], [21, 21]]
    slots = slots_of(answer, A)
    assert [slots.primary_of(slot) for slot in (0, 9, 10, 20, 21, 16383)] == [A, A, B, B, None, None]
    assert slots.primaries == [A, B]
    assert slots.known == [A, B, C]


@pytest.mark.parametrize(
    "answer", [[[0]], [[0, 1, 2]], [[0, 1, [b"h"]]], [["x", 1, [b"h", 1]]], [[0, 1, [b"\xff", 1]]]]
)
def test_what_is_no_answer_is_refused(answer: list[Any]) -> None:
    """With one kind of error."""
    with pytest.raises(ValueError):  # noqa: PT011 -- whichever it is
        slots_of(answer, A)
