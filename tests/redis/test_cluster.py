"""Laws of :mod:`poller.redis.cluster` on a real cluster: each command goes to its slot, and none runs twice."""

from __future__ import annotations

import asyncio
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
from tests.harness.waiting import Deadline, strain, turns, until
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
    """A script without protection against repetition: appends each time it runs."""
    running: Awaitable[int] = client.execute_command("EVAL", APPEND, 1, key, "x")  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
    with translated(client):
        return await running


def piped(client: Redis, *commands: tuple[str | int, ...], transaction: bool = False) -> Awaitable[list[Any]]:
    together = client.pipeline(transaction=transaction)
    for command in commands:
        together.execute_command(*command)
    return together.execute()


async def test_every_key_is_found(client: Redis) -> None:
    """Single commands, scripts and pipelines reach the keys of all primaries; a pipeline's replies keep their order."""
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
    """A pipeline raises the first error of its replies; its other commands are carried out."""
    await client.set("k1", "text")
    asking = client.pipeline(transaction=False)
    for key in KEYS[:5]:
        asking.lpush(key, 1)
    with pytest.raises(StoreRefused, match="WRONGTYPE"), translated(client):
        await asking.execute()
    assert [await client.llen(key) for key in (KEYS[0], *KEYS[2:5])] == [1] * 4
    assert await piped(client) == []


async def test_a_transaction_has_one_slot(client: Redis) -> None:
    """A transaction or command with keys of several slots fails, and no part of it is carried out."""
    together = (("SET", "{a}1", "x"), ("GET", "{a}1"), ("PING",))
    assert await piped(client, *together, transaction=True) == [True, b"x", True]
    with pytest.raises(StoreUnavailable), translated(client):  # to the client this looks like endless MOVED replies
        await piped(client, ("SET", "a", "x"), ("SET", "b", "x"), transaction=True)
    assert await client.exists("a") + await client.exists("b") == 0
    with pytest.raises(StoreRefused, match="slot"), translated(client):
        await client.mget("a", "b")


async def test_what_goes_by_no_server_goes_nowhere(client: Redis) -> None:
    """WATCH is refused, since its redirections could not be followed."""
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
    """During a slot's move each key is found; a script that needs keys of both servers waits and runs once."""
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
    """If a slot's move does not end, commands on it fail as unavailable after some tries, and write nothing."""
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
    """After a primary is killed commands fail, and within a second they reach the new primary."""
    assert await append(client) == 1
    await asyncio.to_thread(cluster.settled)
    await asyncio.to_thread(cluster.primary_of("log").kill)
    with pytest.raises(StoreUnavailable):
        await append(client)
    await asyncio.to_thread(cluster.fail_over, "log", "TAKEOVER")
    soon = Deadline(1)
    length = await until(lambda: append(client), "a new primary", despite=(StoreUnavailable,))
    assert soon.left > 0
    assert length == 2
    await asyncio.to_thread(cluster.empty)


async def test_a_lost_reply_is_one_execution(cluster: Cluster) -> None:
    """A command whose reply is lost is not sent again."""
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
    """If no server answers, each concurrent command fails with the addresses and without the password."""
    async with commands("redis+cluster://u:hunter2@127.0.0.1:1,127.0.0.1:2") as client:
        for told in await asyncio.gather(*(append(client) for _ in range(500)), return_exceptions=True):
            assert isinstance(told, StoreUnavailable)
            assert "127.0.0.1:1,127.0.0.1:2: " in str(told)
            assert "hunter2" not in str(told)


async def test_a_server_that_is_no_cluster(stores: Stores) -> None:
    """A server without cluster support is refused."""
    async with proxied(stores.emptied("valkey")) as proxy, commands(f"redis+cluster://{proxy.place}") as client:
        with pytest.raises(StoreRefused, match="cluster support disabled"):
            await append(client)


async def test_a_stranger_is_refused(url: str) -> None:
    """A wrong password is refused and not shown."""
    async with commands(url.replace("://", "://nobody:hunter2@")) as client:
        with pytest.raises(StoreRefused) as told:
            await append(client)
    assert "hunter2" not in str(told.value)


async def test_more_commands_than_connections(client: Redis) -> None:
    """Concurrent commands wait for their turn, and each server sees at most ``CONNECTIONS`` connections."""

    async def together() -> list[int]:
        with translated(client):
            await client.delete("n")
            asked = [asyncio.ensure_future(client.incr("n")) for _ in range(3 * CONNECTIONS)]
            await asyncio.wait(asked)
            return sorted([int(one.result()) for one in asked])

    # A busy machine may not open all connections in time; those that are open stay open.
    answers = await until(together, "all connections to be open", despite=(StoreUnavailable,))
    assert answers == list(range(1, 3 * CONNECTIONS + 1))
    for server in await servers(client):
        ours = [one for one in await server.client_list() if one["name"] == "poller"]
        assert len(ours) <= CONNECTIONS


async def test_a_cancellation_is_never_swallowed(client: Redis) -> None:
    """A pipeline that is cancelled at any step ends as cancelled, and the next command gets its own reply."""
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
    """A command to a stopped server ends with its timeout; other servers answer, and later this one does again."""
    # Shorter than the others wait for a silent server: then they refuse to serve, too.
    async with connect(url, reply_timeout=timedelta(seconds=min(0.5 * strain(), 2))) as client:
        await append(client)
        node = cluster.primary_of("log")
        elsewhere = next(key for key in KEYS if cluster.primary_of(key) is not node)
        node.stop()
        try:
            waiting = asyncio.create_task(append(client))
            assert await append(client, elsewhere) == 1
            with pytest.raises(StoreUnavailable, match="Timeout"):
                await waiting
        finally:
            node.go_on()
        assert await append(client) > 1


def _client(cluster: Cluster, *, proxies: dict[int, Proxy] | None = None, clock: Clock | None = None) -> ClusterClient:
    """A client with the test's own way to the servers, or its own pauses."""

    def make(one: Address) -> Redis:
        port = int(proxies[one.port].place.rpartition(":")[2]) if proxies else one.port
        return single_client({"host": one.host, "port": port}, reply_timeout=REPLY_TIMEOUT)

    return ClusterClient([Address("127.0.0.1", cluster.nodes[0].port)], make, clock=clock or Clock())


# Which server has which slots is read seldom, from any server that may know it, by one reader at a time.

A, B, C = (Address("127.0.0.1", port) for port in (1, 2, 3))


@dataclass
class Told:
    """Servers with scripted answers; records which were asked and which clients were closed."""

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
    """Concurrent commands share one request for the slots, and known slots are not requested again."""
    told = Told({A: slots(A, B)})
    nodes = ClusterNodes([A], told.client, clock=Clock())
    assert await asyncio.gather(*(nodes.primary_of(place % 2) for place in range(100))) == [A, B] * 50
    assert told.asked == [A]


async def test_doubts_are_looked_into_ten_times_a_second() -> None:
    """The slots are read at most ten times a second; the last answer stays valid meanwhile."""
    told = Told({A: slots(A), B: slots(B)})
    times = [number / 100 for number in range(12)]
    now = times[0]
    nodes = ClusterNodes([A], told.client, clock=StubClock(monotonic=lambda: now))
    found = []
    for now in times:  # noqa: B007 -- the clock's
        found.append(await nodes.primary_of(0))
        nodes.moved(B)
    assert found == [A] * 10 + [B] * 2
    assert told.asked == [A, B]  # the server named by MOVED is asked, not the one that was wrong


async def test_whoever_failed_is_asked_last() -> None:
    """A server that failed is asked last; while no server answers, the last slots stay valid."""
    told = Told({A: slots(A, B), B: Unreachable("away"), C: Unreachable("away")})
    nodes = ClusterNodes([A, C], told.client, clock=StubClock(monotonic=map(float, count()).__next__))
    await nodes.primary_of(0)
    told.answers[A] = Unreachable("away")
    nodes.failed(A)
    assert await nodes.primary_of(0) == A
    assert told.asked == [A, B, C, A]
    assert await nodes.primary_of(None) == B


async def test_a_slot_of_nobody_is_down() -> None:
    """A slot without a primary raises ClusterDownError, which counts as unavailable."""
    nodes = ClusterNodes([A], Told({A: slots(A)}).client, clock=Clock())
    with pytest.raises(ClusterDownError):
        await nodes.primary_of(7)


async def test_whoever_has_left_is_closed() -> None:
    """The client of a server that left the cluster is closed once no command uses it."""
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
    """A command goes to the slot of its first key, wherever that key is among its arguments."""
    assert slot_of(command) == key_slot(key.encode())


@pytest.mark.parametrize(
    "command",
    [("PING",), ("INFO", "server"), ("CONFIG GET", "*"), ("EVAL", "return 1", 0), ("XREAD", "STREAMS"), ("SCAN", 0)]
)  # fmt: skip
def test_what_has_no_key_goes_anywhere(command: tuple[Any, ...]) -> None:
    """A command without a key has no slot, whatever its arguments are."""
    assert slot_of(command) is None


def test_who_has_which_slots() -> None:
    """Slots are decoded in any order; a server that does not name its host has the host it was reached by."""
    answer = [[10, 20, [b"127.0.0.1", 2, b"id"], [b"127.0.0.1", 3, b"id"]], [0, 9, [b"", 1, b"id", []]], [21, 21]]
    slots = slots_of(answer, A)
    assert [slots.primary_of(slot) for slot in (0, 9, 10, 20, 21, 16383)] == [A, A, B, B, None, None]
    assert slots.primaries == [A, B]
    assert slots.known == [A, B, C]


@pytest.mark.parametrize(
    "answer", [[[0]], [[0, 1, 2]], [[0, 1, [b"h"]]], [["x", 1, [b"h", 1]]], [[0, 1, [b"\xff", 1]]]]
)
def test_what_is_no_answer_is_refused(answer: list[Any]) -> None:
    """A malformed list of slots raises ValueError."""
    with pytest.raises(ValueError):  # noqa: PT011 -- whichever it is
        slots_of(answer, A)
