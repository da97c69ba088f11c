"""A connection to a server that is no primary any more is given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from poller.errors import StoreUnavailable
from poller.store.connection import commands, translated
from tests.harness.waiting import until
from tests.stores import clients_of


@asynccontextmanager
async def demoted(operator: Redis) -> AsyncIterator[None]:
    """A replica, of nobody, for the time of the block."""
    await operator.replicaof("127.0.0.1", "1")
    try:
        yield
    finally:
        await operator.replicaof("NO", "ONE")


async def test_who_says_that_it_is_no_primary_is_left(server: str) -> None:
    """By a command, by a script, and to a read that was waiting: the next command connects anew."""
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
