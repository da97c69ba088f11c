"""A gate before the source: shut, the source is unreachable; open again, it is reachable with its state intact."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine


class Gate:
    """Made by :func:`gated`; ``url`` is the address. Its port stays bound, so no other process can answer there."""

    def __init__(self, source: str) -> None:
        parts = urlsplit(source)
        self.url = ""
        self._place = (parts.hostname, parts.port)
        self._open = True
        self._last_straw: bytes | None = None
        self._through: set[asyncio.Task[None]] = set()

    def shut(self) -> None:
        """End all connections, and every new one immediately."""
        self._open = False
        for task in self._through:
            task.cancel()

    def shut_at(self, text: bytes) -> None:
        """Shut when a request contains this text; that request is not passed on."""
        self._last_straw = text

    def open(self) -> None:
        """Pass new connections on."""
        self._open, self._last_straw = True, None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either side ends it or the gate is shut."""
        task = asyncio.current_task()
        assert task is not None
        self._through.add(task)
        sides = [writer]
        try:
            if self._open:
                back, onward = await asyncio.open_connection(*self._place)
                sides.append(onward)
                await _either(_carry(reader, onward, self._shuts), _carry(back, writer))
        except (OSError, asyncio.CancelledError):
            pass  # either means that the connection ends; nothing awaits this task
        finally:
            self._through.discard(task)
            for side in sides:
                side.close()
                with suppress(OSError):
                    await side.wait_closed()

    def _shuts(self, request: bytes) -> bool:
        if self._last_straw is not None and self._last_straw in request:
            self.shut()
        return not self._open

    async def close(self) -> None:
        """Shut the gate, and wait until all connections have ended."""
        through = tuple(self._through)
        self.shut()
        await asyncio.gather(*through, return_exceptions=True)


@asynccontextmanager
async def gated(source: str) -> AsyncIterator[Gate]:
    """A gate on its own loopback port before the URL ``source``."""
    gate = Gate(source)
    listener = await asyncio.start_server(gate.serve, "127.0.0.1", 0)
    gate.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield gate
    finally:
        listener.close()
        await gate.close()
        await listener.wait_closed()


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ends: Callable[[bytes], bool] = lambda _: False
) -> None:
    while (some := await reader.read(2**16)) and not ends(some):
        writer.write(some)
        await writer.drain()


async def _either(*ways: Coroutine[None, None, None]) -> None:
    """Wait until one of the two directions ends."""
    tasks = [asyncio.create_task(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
