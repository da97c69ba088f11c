"""Laws of :mod:`poller.redis.single`: connections to a former primary are closed, and errors name the key."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import hiredis
import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import DataError

from poller.errors import StoreRefused, StoreUnavailable
from poller.redis.client import commands, connect
from poller.redis.errors import translated
from poller.redis.single import packed_arguments, single_client
from poller.source.paging import SLICE_BYTES
from poller.store.keys import KEY_TYPES
from tests.harness.lookups import without_lookups
from tests.harness.unread import MANY, unread
from tests.harness.waiting import patience, strain, until
from tests.servers import running
from tests.stores import clients_of


@asynccontextmanager
async def demoted(operator: Redis) -> AsyncIterator[None]:
    """Make the server a replica while the block runs."""
    await operator.replicaof("127.0.0.1", "1")
    try:
        yield
    finally:
        await operator.replicaof("NO", "ONE")


async def test_who_says_that_it_is_no_primary_is_left(server: str) -> None:
    """After a reply that the server is no primary, the next command opens a new connection."""
    async with commands(server) as operator, commands(server) as client:
        script = client.register_script("return redis.call('SET', KEYS[1], 'x')")
        await script(["k"])
        for asking in (client.set("k", "x"), script(["k"])):
            own = await client.client_id()
            async with demoted(operator):
                with pytest.raises(StoreUnavailable), translated(client):
                    await asking
                assert await client.client_id() != own
        own = await client.client_id()
        reading = asyncio.ensure_future(client.xread({"s": "$"}, block=4000))
        await until(lambda: clients_of(operator, "blocked"), "the read to block")
        async with demoted(operator):
            with pytest.raises(StoreUnavailable), translated(client):
                await reading
            assert await client.client_id() != own


ARGUMENTS = st.one_of(
    st.binary(max_size=9), st.binary(min_size=4090, max_size=4100), st.text(max_size=9), st.integers()
)


def unconnected() -> AbstractConnection:
    made: AbstractConnection = commands("redis://localhost").connection_pool.make_connection()  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
    return made


@given(st.lists(ARGUMENTS, max_size=50), st.lists(ARGUMENTS, max_size=3), st.integers(0, 80))
def test_a_script_with_many_arguments_is_sent_as_any_other(ahead: list[Any], behind: list[Any], copies: int) -> None:
    """However many arguments, and of whatever types, the bytes sent are those that hiredis makes of them."""
    connection = unconnected()
    command = ["EVALSHA", "0" * 40, 0, *ahead, *[b"value", b""] * copies, *behind]
    assert b"".join(connection.pack_command(*command)) == hiredis.pack_command(tuple(command))


@given(st.lists(ARGUMENTS, max_size=5), st.lists(st.binary(max_size=9), max_size=200), st.lists(ARGUMENTS, max_size=5))
def test_what_was_packed_before_is_sent_as_any_other_arguments(
    ahead: list[Any], packed: list[bytes], behind: list[Any]
) -> None:
    """Wherever they stand among others, the bytes sent are those that hiredis makes of all."""
    connection, start = unconnected(), ("EVALSHA", "0" * 40, 0)
    sent = connection.pack_command(*start, *ahead, cast("Any", packed_arguments(packed)), *behind)
    assert b"".join(sent) == hiredis.pack_command((*start, *ahead, *packed, *behind))


def test_text_is_not_packed_ahead() -> None:
    """Its length in bytes is another one than in characters, and the server would wait for what never comes."""
    with pytest.raises(TypeError):
        packed_arguments(["é"])  # type: ignore[list-item]  # that is the point


@pytest.mark.parametrize("count", [3, 300])
def test_what_cannot_be_sent_is_refused(count: int) -> None:
    """An argument that is neither text nor bytes nor a number is an error and not sent in any form."""
    connection = unconnected()
    wrongs: tuple[Any, ...] = (None, [b"value"], {})
    for wrong in wrongs:
        with pytest.raises(DataError):
            connection.pack_command("EVALSHA", "0" * 40, 0, *[b"value"] * count, wrong)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("HGETALL", "p:{a/b}:state"), r"p:\{a/b\}:state is a list, not a hash: another program uses this prefix"),
        (("XREAD", "COUNT", "1", "STREAMS", "p:{a/b}:events", "0"), r"p:\{a/b\}:events is a list, not a stream"),
        (("XINFO", "GROUPS", "p:{a/b}:events"), r"p:\{a/b\}:events is a list, not a stream"),
        (("SET", "other", "x", "GET"), r"WRONGTYPE other is a list: another"),
        (
            ("EVAL", "return redis.call('XLEN', KEYS[2])", 3, "p:{a/b}:pause", "p:{a/b}:events", "none", "x"),
            r"WRONGTYPE p:\{a/b\}:events is a list, not a stream",
        ),
    ],
)
async def test_a_key_of_another_type_is_named(server: str, command: tuple[str | int, ...], words: str) -> None:
    """An error about a key of another type names the key and its type, which the server itself does not."""
    async with commands(server, key_types=KEY_TYPES) as client:
        await client.flushdb()
        for key in ("p:{a/b}:state", "p:{a/b}:events", "other"):
            await client.rpush(key, "x")
        await client.set("p:{a/b}:pause", "x")
        with pytest.raises(StoreRefused, match=words), translated(client):
            await client.execute_command(*command)  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
        together = client.pipeline(transaction=False)
        together.get("p:{a/b}:pause")
        together.execute_command(*command)
        with pytest.raises(StoreRefused, match=words), translated(client):
            await together.execute()


async def test_a_connection_that_was_reset_while_idle_is_not_used() -> None:
    """A connection that was reset while idle is replaced before the next command is sent."""
    made: list[asyncio.StreamWriter] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.append(writer)
        while await reader.read(65536):
            writer.write(b"+OK\r\n")

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, commands(f"redis://127.0.0.1:{port}/0") as opened:
        client: Any = opened  # redis-py's pool and commands have no types
        assert await client.execute_command("ECHO", "x") == b"OK"
        (connection,) = client.connection_pool._available_connections
        made[0].get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        made[0].transport.abort()
        await until(lambda: connection._reader.exception() is not None, "the reset to arrive")
        with translated(opened):
            assert await client.execute_command("ECHO", "x") == b"OK"
        assert len(made) == 2
        made[1].close()


@pytest.mark.parametrize("factory", [None, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_connection_that_was_reset_can_be_closed(factory: Callable[[], asyncio.AbstractEventLoop] | None) -> None:
    """Closing a connection whose socket is gone succeeds, or its pool would keep it, and fail with it, for ever."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65536):
            writer.write(b"+OK\r\n")
            await writer.drain()
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def main() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, commands(f"redis://127.0.0.1:{port}/0") as opened:
            connection: Any = opened.connection_pool.make_connection()  # type: ignore[no-untyped-call]  # redis-py's
            await connection._connect()
            own = connection._writer.get_extra_info("socket")
            connection._writer.write(b"PING\r\n")
            await until(lambda: own.fileno() < 0, "the reset to arrive")
            assert connection.is_connected
            await connection.disconnect(nowait=True)
            assert not connection.is_connected

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())


async def test_an_address_that_answers_nothing_does_not_keep_from_the_next() -> None:
    """Each address of a name has its share of the time to connect, so that the last one is tried, too."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65536):
            writer.write(b"+OK\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with closing(socket.socket()) as deaf, ExitStack() as waiting:
        deaf.bind(("127.0.0.2", port))
        deaf.listen(0)
        for _ in range(4):  # its queue is full: what comes now is dropped
            one = waiting.enter_context(closing(socket.socket()))
            one.setblocking(False)
            one.connect_ex(("127.0.0.2", port))

        async def lookup(_: str) -> list[str]:
            return ["127.0.0.2", "127.0.0.1"]

        async with server, commands(f"redis://store.example:{port}/0") as opened:
            client: Any = opened  # as above
            client.connection_pool.connection_class.lookup = staticmethod(lookup)
            assert await client.execute_command("ECHO", "x") == b"OK"


async def test_a_command_that_is_given_up_does_not_arrive_later() -> None:
    """What the server has not received of a command that nothing waits for any more is discarded.

    A network that loses packets for some seconds would else deliver an old command after newer ones: the kernel sends
    it again, although the connection is closed. A late XREADGROUP takes entries that no one delivers then.
    """
    async with unread() as listener, commands(f"redis://127.0.0.1:{listener.port}/0") as client:
        sending = asyncio.ensure_future(client.set("k", b"x" * MANY))
        server = await listener.accepted()
        await server.read()
        await server.write(b"+OK\r\n")  # to CLIENT SETNAME
        assert await server.read()
        sending.cancel()
        await asyncio.wait([sending])
        assert await server.rest() < MANY // 2


async def test_a_server_that_reads_nothing_is_waited_for_as_long_as_said() -> None:
    """A command that is larger than what the system takes ends with the reply timeout."""
    limit = timedelta(seconds=0.5 * strain())
    async with (
        unread() as listener,
        connect(f"redis://127.0.0.1:{listener.port}/0", reply_timeout=limit) as client,
        patience("the command to be given up"),
    ):
        sending = asyncio.ensure_future(client.set("k", b"x" * 50 * MANY))  # more than a kernel keeps
        server = await listener.accepted()
        await server.read()
        await server.write(b"+OK\r\n")  # to CLIENT SETNAME
        with pytest.raises(StoreUnavailable, match="Timeout"), translated(client):
            await sending
        assert await server.rest() < 50 * MANY


async def test_a_connection_that_fails_leaves_its_place_to_the_next() -> None:
    """While no server listens, each command learns that; none waits for a connection of those before it."""
    async with patience("the commands"):
        client = single_client({"host": "127.0.0.1", "port": 1}, reply_timeout=timedelta(hours=1), connections=1)
        for _ in range(3):
            with pytest.raises(Disconnected, match="connecting to"):
                await client.ping()
        await client.aclose()


def test_the_name_of_a_server_is_not_looked_up_by_the_event_loop() -> None:
    """A server is reached by its name, one address after the other, without a look-up of the event loop.

    Such a look-up cannot be given up: while no name server answers, the process would not end.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65536):
            writer.write(b"+OK\r\n")
        writer.close()

    async def ask() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, commands(f"redis://localhost:{port}/0") as client:
            assert await client.execute_command("ECHO", "x") == b"OK"  # type: ignore[no-untyped-call]  # redis-py's
        async with commands("redis://store.invalid:6379/0") as client:
            with (
                pytest.raises(StoreUnavailable, match=r"store\.invalid:6379: cannot connect: .*not known"),
                translated(client),
            ):
                await client.ping()

    without_lookups(ask())


async def test_a_unix_socket_takes_a_commit_at_once(tmp_path: Path) -> None:
    """The system's buffer is larger than a slice of records, so that nothing of it waits for the event loop."""
    with running("valkey", tmp_path) as unix:
        async with commands(unix.url) as client:
            connection = await client.connection_pool.get_connection()  # type: ignore[no-untyped-call]
            own = connection._writer.get_extra_info("socket")
            assert own.family == socket.AF_UNIX
            assert own.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) > SLICE_BYTES
            await client.connection_pool.release(connection)
