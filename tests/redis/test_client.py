"""Laws of :mod:`poller.redis.client`: a command is sent once, whatever happens to its reply."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from redis import exceptions as spoken
from redis._defaults import DEFAULT_RETRY_COUNT
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from poller.errors import StoreUnavailable
from poller.redis.client import CONNECTIONS, Protocol, blocking, commands, connect
from poller.redis.errors import translated
from tests.harness.waiting import strain, until
from tests.proxy import proxied

if TYPE_CHECKING:
    from collections.abc import Awaitable


APPEND = b"return redis.call('XADD', KEYS[1], '*', 'data', ARGV[1])"


async def append(client: Redis) -> None:
    """A script without protection against repetition: appends each time it runs."""
    running: Awaitable[object] = client.execute_command("EVAL", APPEND, 1, "log", "x")  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
    await running


@pytest.mark.parametrize("protocol", [2, 3])
async def test_a_lost_reply_is_one_execution(server: str, protocol: Protocol) -> None:
    """After a lost reply the script has run once, the error is StoreUnavailable, and the next command works."""
    async with proxied(server) as proxy, commands(proxy.url, protocol=protocol) as client:
        proxy.lose_reply(to=b"EVAL", times=20)
        with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:\d+: "), translated(client):
            await append(client)
        assert proxy.times(b"EVAL") == 1
        assert await client.xlen("log") == 1


async def test_a_default_client_would_execute_eleven_times(server: str) -> None:
    """With redis-py's default of ten retries the script runs eleven times, so the proxy does show repetitions."""
    retry = Retry(NoBackoff(), DEFAULT_RETRY_COUNT)
    async with proxied(server) as proxy, Redis.from_url(proxy.url, retry=retry) as client:
        proxy.lose_reply(to=b"EVAL", times=20)
        with pytest.raises(spoken.ConnectionError):
            await append(client)
        assert await client.xlen("log") == 11


async def test_a_reply_cut_in_the_middle_is_one_execution(server: str) -> None:
    """A reply cut in the middle counts as no reply, and the next command gets its own reply."""
    async with proxied(server) as proxy, commands(proxy.url) as client:
        proxy.cut_reply(to=b"EVAL", after=5)
        with pytest.raises(StoreUnavailable), translated(client):
            await append(client)
        assert proxy.times(b"EVAL") == 1
        assert await client.xlen("log") == 1


async def test_a_reset_connection_is_not_tried_again(server: str) -> None:
    """A command whose connection is reset fails without being sent again."""
    async with proxied(server) as proxy, commands(proxy.url) as client:
        proxy.reset(to=b"EVAL", times=20)
        with pytest.raises(StoreUnavailable), translated(client):
            await append(client)
        assert proxy.times(b"EVAL") == 1
        assert await client.xlen("log") == 0


async def test_a_silent_server_is_waited_for_as_long_as_said(server: str) -> None:
    """A command on a half-open connection ends with the reply timeout, and is not sent again."""
    async with proxied(server) as proxy, connect(proxy.url, reply_timeout=timedelta(seconds=0.1 * strain())) as client:
        await client.ping()
        proxy.silence(to=b"EVAL", times=20)
        with pytest.raises(StoreUnavailable, match="Timeout"), translated(client):
            await append(client)
        assert proxy.times(b"EVAL") == 1


async def test_a_cancelled_command_does_not_poison_the_next(server: str) -> None:
    """A command that is cancelled before its reply arrives leaves no reply for the next command."""
    async with proxied(server) as proxy, commands(proxy.url) as client:
        held = proxy.hold_reply(to=b"EVAL")
        task = asyncio.create_task(append(client))
        await held.struck.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        held.freed.set()
        assert await client.xlen("log") == 1


async def test_a_client_is_what_it_says(server: str) -> None:
    """CLIENT LIST shows the client's name and protocol, and replies are bytes."""
    async with commands(server, protocol=2) as two, commands(server, protocol=3) as three:
        for client, protocol in ((two, 2), (three, 3)):
            await client.set("k", b"\xff")
            assert await client.get("k") == b"\xff"
            own = await client.client_info()
            assert own["name"] == "poller"
            assert own.get("resp", str(protocol)) == str(protocol)


async def test_a_blocking_read_may_last_as_long_as_its_block(server: str) -> None:
    """A blocking client's reply timeout exceeds its block time; that of every other client is five seconds."""
    async with blocking(server, block=timedelta(seconds=9)) as client, commands(server) as other:
        assert client.connection_pool.connection_kwargs["socket_timeout"] == 14
        assert other.connection_pool.connection_kwargs["socket_timeout"] == 5
        assert other.connection_pool.connection_kwargs["socket_connect_timeout"] == 2
        assert not await client.xread({"log": "$"}, block=1)


async def test_nothing_listens() -> None:
    """If no server listens, the store is unavailable; the message names the address but not the password."""
    async with commands("redis://:hunter2@127.0.0.1:1") as client:
        with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1") as failure, translated(client):
            await client.get("k")
    assert "hunter2" not in str(failure.value)


async def test_a_cancellation_is_never_swallowed(server: str) -> None:
    """A command that is cancelled at any step ends as cancelled; a swallowed cancellation would hang the daemon."""
    client, loop = commands(server), asyncio.get_running_loop()
    swallowed = 0

    def cancel_after(steps: int, task: asyncio.Future[bytes | str], asked: list[bool]) -> None:
        if steps:
            loop.call_soon(cancel_after, steps - 1, task, asked)
        else:
            asked.append(task.cancel())

    for round_ in range(10):
        for steps in range(30):
            asked: list[bool] = []
            task = asyncio.ensure_future(client.echo(f"{round_}"))
            cancel_after(steps, task, asked)
            await asyncio.wait({task})
            swallowed += asked == [True] and not task.cancelled()
    await client.aclose()
    assert swallowed == 0


async def test_more_commands_than_connections(server: str) -> None:
    """Any number of concurrent commands is answered over at most ``CONNECTIONS`` connections."""
    async with commands(server) as client:

        async def together() -> list[int]:
            await client.delete("n")
            asked = [asyncio.ensure_future(client.incr("n")) for _ in range(3 * CONNECTIONS)]
            await asyncio.wait(asked)
            return sorted([int(one.result()) for one in asked])

        # A busy machine may not open all connections in time; those that are open stay open.
        answers = await until(together, "all connections to be open", despite=(spoken.TimeoutError,))
        assert answers == list(range(1, 3 * CONNECTIONS + 1))
        ours = [one for one in await client.client_list() if one["name"] == "poller"]
        assert len(ours) <= CONNECTIONS


@pytest.mark.parametrize("turn", range(8))
async def test_it_closes_its_connections_although_it_is_cancelled(server: str, turn: int) -> None:
    """A client that is cancelled at any step of closing closes all its connections."""
    client = commands(server)
    await asyncio.gather(*(client.execute_command("CLIENT", "ID") for _ in range(3)))  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
    connections = list(client.connection_pool._available_connections)
    assert len(connections) == 3
    closing = asyncio.create_task(client.aclose())
    for _ in range(turn + 1):
        await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    assert not [one for one in connections if one.is_connected]
