"""Each fault of the wire does what it says, and without faults the wire changes nothing."""

from __future__ import annotations

import asyncio
import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.harness.waiting import patience, until
from tests.harness.wire import wired

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.harness.wire import Wire


@asynccontextmanager
async def _echo() -> AsyncIterator[Wire]:
    """A wire to an echo server."""
    writers = set[asyncio.StreamWriter]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        while some := await reader.read(1000):
            writer.write(some)
            await writer.drain()
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        async with wired(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}") as wire:
            yield wire
    finally:
        for writer in writers:
            writer.close()
        listener.close()
        await listener.wait_closed()


class _Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def tell(self, text: bytes) -> None:
        self._writer.write(text)

    async def said(self, text: bytes) -> bytes:
        self.tell(text)
        async with patience("an answer"):
            return await self._reader.readexactly(len(text))

    async def rest(self) -> bytes:
        async with patience("the end"):
            return await self._reader.read()

    def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def _client(wire: Wire) -> AsyncIterator[_Client]:
    parts = urlsplit(wire.url)
    client = _Client(*await asyncio.open_connection(parts.hostname, parts.port))
    try:
        yield client
    finally:
        client.close()


async def test_it_passes_what_is_said() -> None:
    """Without a fault the wire passes all bytes unchanged."""
    async with _echo() as wire, _client(wire) as client:
        assert wire.url.startswith("http://")
        assert await client.said(b"one") == b"one"
        assert await client.said(b"x" * 1000) == b"x" * 1000


async def test_what_was_silenced_stays_silent() -> None:
    """A silenced connection stays silent and open; after mending, new connections work and the old one does not."""
    async with _echo() as wire, _client(wire) as old:
        await old.said(b"one")
        wire.silence()
        async with _client(wire) as met:
            await until(lambda: wire.connections == 2, "the wire to meet it")
            wire.mend()
            async with _client(wire) as new:
                for client in (old, met):
                    speaking = asyncio.create_task(client.said(b"two"))
                    assert await new.said(b"three") == b"three"
                    assert not speaking.done()
                    speaking.cancel()


async def test_it_cuts_answers_after_so_many_bytes() -> None:
    """The bytes before the cut arrive, then the connection is reset, and the loss noted; after mending all is well."""
    async with _echo() as wire, _client(wire) as client:
        await client.said(b"one")
        wire.cut(2)
        assert not wire.losses
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await client.said(b"two")
        assert len(wire.losses) == 1
        wire.mend()
        async with _client(wire) as new:
            assert await new.said(b"three") == b"three"


async def test_it_resets_and_refuses() -> None:
    """A refusal resets existing connections and ends new ones until the wire is mended."""
    async with _echo() as wire, _client(wire) as client:
        await client.said(b"one")
        wire.refuse()
        with pytest.raises(ConnectionResetError):
            await client.rest()
        assert len(wire.losses) == 1
        async with _client(wire) as refused:
            assert await refused.rest() == b""
        wire.mend()
        async with _client(wire) as new:
            assert await new.said(b"two") == b"two"


async def test_it_is_slow() -> None:
    """A delay and a rate make the answer take at least that long."""
    async with _echo() as wire, _client(wire) as client:
        clock = asyncio.get_running_loop().time
        wire.delay(0.02)
        began = clock()
        await client.said(b"one")
        assert clock() - began >= 0.04
        wire.mend()
        wire.throttle(20_000)
        began = clock()
        await client.said(b"x" * 500)
        assert clock() - began >= 0.05


async def test_an_outage_lasts_until_those_who_wait_in_vain_have_given_up() -> None:
    """It ends with the wire's fault, or later with the last silent connection on which something was lost."""
    async with _echo() as wire:
        wire.delay(0.001)
        wire.mend()
        async with _client(wire) as idle:
            await idle.said(b"one")
            async with _client(wire) as client:
                await client.said(b"one")
                wire.silence()
                client.tell(b"two")
                await until(lambda: bool(wire.losses), "the loss")
                wire.mend()
                assert [end < math.inf for _, end in wire.outages] == [True, False]
            await until(lambda: wire.outages[-1][1] < math.inf, "the end of the outage")
            idle.tell(b"two")
            await until(lambda: len(wire.outages) > 2, "an outage, because a connection is still silent")
        await until(lambda: wire.outages[-1][1] < math.inf, "its end")
    assert all(begun <= end for begun, end in wire.outages)
