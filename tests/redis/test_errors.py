"""Laws of :mod:`poller.redis.errors`: each failure of Redis is one of two kinds, and shows no secret."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from redis import exceptions as spoken
from redis.asyncio import Redis

from poller.errors import Fenced, StoreRefused, StoreUnavailable
from poller.redis.client import commands
from poller.redis.errors import described, let_in, translated
from tests.harness.waiting import until
from tests.servers import KINDS, Kind, running
from tests.stores import clients_of

if TYPE_CHECKING:
    from pathlib import Path


UNAVAILABLE = [
    spoken.ConnectionError("Connection closed by server."),
    spoken.MaxConnectionsError("Too many connections"),
    spoken.TimeoutError("Timeout reading from h:6379"),
    spoken.BusyLoadingError("Redis is loading the dataset in memory"),
    spoken.ReadOnlyError("You can't write against a read only replica."),
    spoken.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
    spoken.ClusterDownError("The cluster is down"),
    spoken.MasterDownError("Link with MASTER is down"),
    spoken.TryAgainError("Multiple keys request during rehashing of slot"),
    spoken.MovedError("3999 127.0.0.1:6381"),
    spoken.InvalidResponse("Protocol Error"),
    spoken.ResponseError("BUSY Redis is busy running a script."),
    spoken.ResponseError("MISCONF Errors writing to the AOF file: No space left on device"),
    spoken.ResponseError("NOREPLICAS Not enough good replicas to write."),
    spoken.ResponseError("UNBLOCKED force unblock from blocking operation"),
    spoken.ResponseError("Error running script (call to f_1): @user_script:1: -OOM command not allowed"),
    spoken.ResponseError("Error running script (call to f_1): @user_script:1: -READONLY You can't write"),
    ConnectionResetError("reset"),
    TimeoutError(),
    AttributeError("'NoneType' object has no attribute 'readexactly'"),
    RuntimeError("read() called while another coroutine is already waiting"),
]

REFUSED = [
    spoken.AuthenticationError("Authentication required."),
    spoken.AuthenticationError("invalid username-password pair or user is disabled."),
    spoken.AuthorizationError("no"),
    spoken.NoPermissionError("User default has no permissions to run the 'eval' command"),
    spoken.ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"),
    spoken.ResponseError("BUSYGROUP Consumer Group name already exists"),
    spoken.ResponseError("unknown command 'EVALSHA'"),
    spoken.DataError("Invalid input of type: 'NoneType'."),
]


@pytest.mark.parametrize("error", UNAVAILABLE, ids=repr)
def test_what_may_be_better_later(error: Exception) -> None:
    """Network errors, timeouts, a server that cannot serve now, and stray errors of redis-py are unavailable."""
    with pytest.raises(StoreUnavailable) as ours, translated():
        raise error
    assert ours.value.__cause__ is error


@pytest.mark.parametrize("error", REFUSED, ids=repr)
def test_what_stays_refused(error: Exception) -> None:
    """Wrong credentials, permissions, types and commands are refused."""
    with pytest.raises(StoreRefused) as ours, translated():
        raise error
    assert ours.value.__cause__ is error


def test_what_passes() -> None:
    """The program's own errors pass unchanged."""
    error = Fenced("mine no more")
    with pytest.raises(Fenced) as passed, translated():
        raise error
    assert passed.value is error


def test_cancellation_passes() -> None:
    """A cancellation is not taken for a broken connection."""
    with pytest.raises(asyncio.CancelledError), translated():
        raise asyncio.CancelledError


def test_a_message_is_one_short_line() -> None:
    """A server's error of many lines becomes one short line."""
    with pytest.raises(StoreRefused) as ours, translated():
        raise spoken.ResponseError("ERR\r\n" + "long " * 1000)
    assert "\n" not in str(ours.value)
    assert len(str(ours.value)) < 400


def test_a_message_names_no_place_in_a_script() -> None:
    """The digest of a script and its line, which servers add to an error within it, are left out."""
    with pytest.raises(StoreUnavailable) as ours, translated():
        raise spoken.ReadOnlyError(f"You can't write against a replica. script: {'0f' * 20}, on @user_script:9.")
    assert str(ours.value) == "Redis: You can't write against a replica"


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("Error 111 connecting to db:6379. Connection refused.", "cannot connect: Connection refused"),
        ("Error -2 connecting to db:6379. Name or service not known.", "cannot connect: Name or service not known"),
        ("Error 111 connecting to other:1. Connection refused.", "cannot connect to other:1: Connection refused"),
        ("Timeout connecting to server", "Timeout connecting to server"),
    ],
)
def test_a_connection_that_cannot_be_made_names_its_address_once(said: str, meant: str) -> None:
    """redis-py's number and address are left out, unless it names another server than the message does."""
    assert described(spoken.ConnectionError(said), "db:6379") == meant


@pytest.mark.parametrize("kind", KINDS)
async def test_wrong_password(kind: Kind, tmp_path: Path) -> None:
    """A wrong or missing password is refused; the message has the address but not the password."""
    with running(kind, tmp_path, appendfsync="no", tcp=True, options={"requirepass": "open-sesame"}) as server:
        place = server.url.removeprefix("redis://")
        for url in (server.url, f"redis://:hunter2@{place}", f"redis://nobody:hunter2@{place}"):
            async with commands(url) as client:
                with pytest.raises(StoreRefused, match=place) as ours, translated(client):
                    await client.get("k")
                assert "hunter2" not in str(ours.value)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_that_repeats_the_password(kind: Kind, tmp_path: Path) -> None:
    """A password that a server repeats in its error appears neither in the message nor in a traceback."""
    options = {"rename-command": ("AUTH", "LOGIN")}
    with running(kind, tmp_path, appendfsync="no", options=options) as server:
        async with commands(f"{server.url}?password=hunter2") as client:
            with pytest.raises(StoreRefused, match="unknown command 'AUTH'") as ours, translated(client):
                await client.get("k")
    assert "hunter2" not in str(ours.value)
    assert ours.value.__suppress_context__
    assert ours.value.__cause__ is None


@pytest.mark.parametrize("kind", KINDS)
async def test_out_of_memory_inside_a_script(kind: Kind, tmp_path: Path) -> None:
    """A script that fails for lack of memory is unavailable, since it may work once there is room."""
    with running(kind, tmp_path, appendfsync="no", options={"maxmemory": "1"}) as server:
        async with commands(server.url) as client:
            with pytest.raises(StoreUnavailable) as ours, translated(client):
                await client.eval("return redis.call('SET', KEYS[1], ARGV[1])", 1, "k", "v")
    full = f"{server.url.removeprefix('unix://')}: its memory is full (maxmemory): raise maxmemory, or lower retention"
    assert str(ours.value) == full


async def test_a_wrong_type_and_a_missing_script(server: str) -> None:
    """On a real server, a key of a wrong type is refused; a script that the server has lost is unavailable."""
    async with commands(server) as client:
        await client.set("k", "v")
        with pytest.raises(StoreRefused, match="WRONGTYPE"), translated(client):
            await client.xlen("k")
        with pytest.raises(StoreUnavailable, match="forgot a script"), translated(client):
            await client.evalsha("0" * 40, 0)


async def test_a_client_closed_under_a_command(server: str) -> None:
    """Closing a client during a blocking read raises StoreUnavailable."""
    async with commands(server) as observer:
        client = commands(server)
        reading = asyncio.create_task(_read(client))
        await until(lambda: clients_of(observer, "blocked"), "the read to block")
        await client.connection_pool.disconnect()
        with pytest.raises(StoreUnavailable):
            await reading
        await client.aclose()


async def _read(client: Redis) -> None:
    with translated(client):
        await client.xread({"k": "$"}, block=4000)


async def test_a_password_that_was_right_before(tmp_path: Path) -> None:
    """A password that is wrong at the start is refused; one that becomes wrong later is an outage."""
    with running("valkey", tmp_path) as server:
        async with commands(server.url) as admin, commands(server.url) as ours, commands(server.url) as another:
            await ours.ping()
            let_in(ours)
            await admin.config_set("requirepass", "changed")
            await ours.connection_pool.disconnect()
            with pytest.raises(StoreUnavailable, match="Authentication required"), translated(ours):
                await ours.ping()
            with pytest.raises(StoreRefused, match="Authentication required"), translated(another):
                await another.ping()
