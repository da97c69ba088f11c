"""Laws of :mod:`poller.redis.sentinel` on real Sentinels: the client follows the primary."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis

from poller.errors import StoreRefused, StoreUnavailable
from poller.redis.client import CONNECTIONS, commands, connect, scattered, servers
from poller.redis.errors import translated
from tests.harness.sentinels import SERVICE
from tests.harness.waiting import Deadline, until

if TYPE_CHECKING:
    from tests.harness.nodes import Node
    from tests.harness.sentinels import Sentinels
    from tests.stores import Stores


@pytest.fixture
def url(stores: Stores) -> str:
    return stores.emptied("sentinel")


@pytest.fixture
def sentinels(url: str, stores: Stores) -> Sentinels:
    return stores.sentinels


async def incremented(client: Redis) -> int:
    with translated(client):
        return int(await client.incr("n"))


async def until_it_works(client: Redis) -> int:
    return await until(lambda: incremented(client), "a new primary", despite=(StoreUnavailable,))


@asynccontextmanager
async def naming(node: Node | None) -> AsyncIterator[str]:
    """A server that answers like a Sentinel that knows only this primary, or none; its host and port."""
    named = f"*2\r\n$9\r\n127.0.0.1\r\n${len(str(node.port))}\r\n{node.port}\r\n" if node else "*-1\r\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readline():
            words = []
            for _ in range(int(head[1:])):
                await reader.readline()
                words.append((await reader.readline()).strip())
            writer.write(named.encode() if words[0] == b"SENTINEL" else b"+OK\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
        yield f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        listener.close()


@pytest.mark.parametrize("protocol", [2, 3])
async def test_it_writes_to_the_primary(url: str, sentinels: Sentinels, protocol: int) -> None:
    """Commands go to the primary, by either version of RESP, over at most ``CONNECTIONS`` connections."""
    async with commands(f"{url.partition('?')[0]}?protocol={protocol}") as client:
        assert not scattered(client)
        assert await servers(client) == [client]

        async def together() -> int:
            with translated(client):
                await client.delete("n")
            asked = [asyncio.ensure_future(incremented(client)) for _ in range(3 * CONNECTIONS)]
            await asyncio.wait(asked)
            return max([one.result() for one in asked])

        # A busy machine may not open all connections in time; those that are open stay open.
        await until(together, "all connections to be open", despite=(StoreUnavailable,))
        assert len([one for one in await client.client_list() if one["name"] == "poller"]) <= CONNECTIONS
    assert sentinels.primary.ask("GET", "n") == b"%d" % (3 * CONNECTIONS)


async def test_a_failover_is_followed(url: str, sentinels: Sentinels) -> None:
    """Within a second after a failover, commands go to the new primary, also those of idle connections."""
    async with commands(url) as client:
        await asyncio.gather(*(incremented(client) for _ in range(20)))
        before = sentinels.primary
        await asyncio.to_thread(sentinels.fail_over)
        soon = Deadline(1)
        await until_it_works(client)
        assert soon.left > 0
        await asyncio.gather(*(until_it_works(client) for _ in range(20)))
        assert sentinels.primary is not before
        assert int(sentinels.primary.ask("GET", "n")) >= 41
        await until(lambda: b"name=poller" not in before.ask("CLIENT", "LIST"), "the old connections to be closed")


@pytest.mark.thorough
async def test_a_primary_that_hangs_is_replaced(url: str, sentinels: Sentinels) -> None:
    """Once a hanging primary is replaced, its open connections are not used again."""
    async with connect(url, reply_timeout=timedelta(seconds=2)) as client:
        await asyncio.gather(*(incremented(client) for _ in range(5)))
        before = sentinels.primary
        before.stop()
        try:
            waiting = asyncio.create_task(incremented(client))
            await asyncio.to_thread(sentinels.replaced, before)
            with pytest.raises(StoreUnavailable):
                await waiting
            soon = Deadline(1)
            await asyncio.gather(*(until_it_works(client) for _ in range(10)))
            assert soon.left > 0
        finally:
            before.go_on()
    await asyncio.to_thread(sentinels.settled)


async def test_sentinels_that_do_not_help_are_passed_over(url: str, sentinels: Sentinels) -> None:
    """Sentinels that are down, know no primary or name a replica are skipped for one that names the primary."""
    good = f"127.0.0.1:{sentinels.watchers[0].port}"
    async with naming(None) as ignorant, naming(sentinels.replica) as wrong:
        hosts = f"127.0.0.1:1,{ignorant},{wrong},{good}"
        async with commands(f"redis+sentinel://{hosts}/{SERVICE}") as client:
            with pytest.raises(StoreUnavailable, match="was named as the primary and is a slave"):
                await incremented(client)
            assert await incremented(client) == 1


async def test_a_service_that_nobody_knows(url: str) -> None:
    """A service that no Sentinel knows is unavailable, as it may be configured later."""
    async with commands(url.replace(SERVICE, "other")) as client:
        with pytest.raises(StoreUnavailable, match="no Sentinel names a primary of 'other'"):
            await incremented(client)


async def test_sentinels_that_do_not_let_us_in(url: str) -> None:
    """A password that the Sentinels refuse is a refusal, and is not shown."""
    async with commands(f"{url.partition('?')[0]}?sentinel_password=hunter2") as client:
        with pytest.raises(StoreRefused) as told:
            await incremented(client)
    assert "hunter2" not in str(told.value)
