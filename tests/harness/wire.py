"""A wire between the program and its peer: TCP, byte for byte, with the faults of a network.

It knows connections and bytes only; :mod:`tests.proxy` knows commands. Each fault applies to existing connections and,
until :meth:`Wire.mend`, to new ones. What was lost on a connection stays lost: a silenced or cut connection never
recovers, and its user has to notice and open another.
"""

from __future__ import annotations

import asyncio
import math
import socket
import struct
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_CHUNK = 2**16


@dataclass(slots=True, eq=False)
class _Line:
    """One connection and its faults; on one that has ``lost`` something its user may wait for it in vain."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    silent: bool = False
    answers_left: int | None = None
    lost: bool = False


@dataclass(slots=True)
class _Weather:
    """The faults for new connections."""

    delay: float = 0.0
    rate: float | None = None
    silent: bool = False
    refusing: bool = False
    answers: int | None = None


class Wire:
    """Made by :func:`wired`.

    Attributes:
        url: the address to connect to.
        losses: the moments (monotonic) at which answers of the peer may have been lost.
        outages: from when to when the peer may have been out of reach: until the wire was mended, and until the last
            silent connection on which something was lost was given up. One that lasts has no end (infinity).
    """

    def __init__(self, end: str) -> None:
        self.url = ""
        self.losses: list[float] = []
        self.outages: list[tuple[float, float]] = []
        self._mended = True
        self._end = urlsplit(end)
        self._weather = _Weather()
        self._lines: set[_Line] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def connections(self) -> int:
        """How many are joined to the peer now."""
        return len(self._lines)

    def delay(self, seconds: float) -> None:
        """Delay all bytes, both ways."""
        self._break()
        self._weather.delay = seconds

    def throttle(self, rate: float) -> None:
        """Limit each direction of each connection to this many bytes a second."""
        self._break()
        self._weather.rate = rate

    def silence(self) -> None:
        """Make connections half-open: nothing arrives, either way, and nothing is closed."""
        self._break()
        self._weather.silent = True
        for line in self._lines:
            line.silent = True

    def cut(self, after: int) -> None:
        """Reset each connection after this many more bytes of answers."""
        self._break()
        self._weather.answers = after
        for line in self._lines:
            line.answers_left = after

    def refuse(self) -> None:
        """Reset all connections, and end each new one immediately."""
        self._weather.refusing = True
        self.reset()

    def reset(self) -> None:
        """Reset all connections; new ones work."""
        self._break()
        for line in self._lines:
            self._reset(line)

    def mend(self) -> None:
        """Remove the faults: new connections work, and old ones that have lost nothing."""
        self._weather = _Weather()
        for line in self._lines:
            line.answers_left = None
        self._mended = True
        self._end_outage()

    def _break(self) -> None:
        self._mended = False
        self._begin_outage()

    def _begin_outage(self) -> None:
        if not self._is_out:
            self.outages.append((time.monotonic(), math.inf))

    def _end_outage(self) -> None:
        if self._is_out and self._mended and not any(line.lost for line in self._lines):
            self.outages[-1] = self.outages[-1][0], time.monotonic()

    @property
    def _is_out(self) -> bool:
        return bool(self.outages) and self.outages[-1][1] == math.inf

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either side ends it."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(OSError, asyncio.CancelledError):
                await self._joined(reader, writer)
        finally:
            self._tasks.discard(task)
            await _closed(writer)

    async def _joined(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._weather.refusing:
            return
        back, onward = await _whole(asyncio.create_task(self._connected()))
        line = _Line(writer, onward, self._weather.silent, self._weather.answers)
        self._lines.add(line)
        ways = [asyncio.create_task(self._carry(reader, onward, line, asked=True))]
        ways.append(asyncio.create_task(self._carry(back, writer, line, asked=False)))
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._lines.discard(line)
            self._end_outage()
            onward.close()  # first, because this task may be cancelled while it waits below
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            await _closed(onward)

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._end.scheme == "unix":
            return await asyncio.open_unix_connection(unquote(self._end.path))
        return await asyncio.open_connection(self._end.hostname, self._end.port)

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: _Line, *, asked: bool
    ) -> None:
        while some := await reader.read(_CHUNK):
            weather = self._weather
            if weather.delay or weather.rate:
                # The delay is the fault.
                await asyncio.sleep(weather.delay + (len(some) / weather.rate if weather.rate else 0.0))
            if line.silent:
                self.losses.append(time.monotonic())
                line.lost = True
                self._begin_outage()  # the wire may be mended, and the connection not used until now
                continue  # these bytes are lost, and so are all later ones
            if not asked and line.answers_left is not None:
                some, line.answers_left = some[: line.answers_left], line.answers_left - len(some)
            writer.write(some)
            await writer.drain()
            if not asked and line.answers_left is not None and line.answers_left <= 0:
                self._reset(line)
                return

    def _reset(self, line: _Line) -> None:
        """RST to the client, an end to the server."""
        self.losses.append(time.monotonic())
        raw: socket.socket = line.client.get_extra_info("socket")
        with suppress(OSError):  # it may be gone already
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        line.client.transport.abort()
        line.server.transport.abort()

    async def close(self) -> None:
        """End every connection."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def wired(end: str) -> AsyncIterator[Wire]:
    """A wire on its own loopback port to ``end``: a URL, or ``unix://`` and a path.

    ``url`` has the scheme of ``end``, or redis for a unix socket.
    """
    wire = Wire(end)
    scheme = urlsplit(end).scheme
    listener = await asyncio.start_server(wire.serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    wire.url = f"{'redis' if scheme == 'unix' else scheme}://127.0.0.1:{port}"
    try:
        yield wire
    finally:
        listener.close()
        await wire.close()
        await listener.wait_closed()


async def _whole(
    connecting: asyncio.Task[tuple[asyncio.StreamReader, asyncio.StreamWriter]],
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A new connection; if the caller is cancelled, it is closed as soon as it exists."""
    try:
        return await asyncio.shield(connecting)
    except asyncio.CancelledError:
        with suppress(OSError):
            await _closed((await connecting)[1])
        raise


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
