"""The cheapest HTTP server there is: heads and bodies as bytes, in a process of its own that tells its URL."""

from __future__ import annotations

import asyncio
import sys
from abc import abstractmethod
from collections.abc import Callable
from typing import cast


class Connection(asyncio.Protocol):
    """One connection; requests come one after the other."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self._buffer = b""

    @abstractmethod
    def answer(self, head: bytes, body: bytes) -> None:
        """Write what is answered to a request, now or later."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is one, but not by its class

    def data_received(self, received: bytes) -> None:
        self._buffer += received
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[: end + 2]
            _, found, length = head.lower().partition(b"\r\ncontent-length: ")
            last = end + 4 + (int(length[: length.index(b"\r")]) if found else 0)
            if len(self._buffer) < last:
                return
            body, self._buffer = self._buffer[end + 4 : last], self._buffer[last:]
            self.answer(head, body)


async def serve(connection: Callable[[], Connection]) -> None:
    """Serve on a loopback port until the process is ended; the URL goes to standard output."""
    server = await asyncio.get_running_loop().create_server(connection, "127.0.0.1", 0, backlog=4096)
    sys.stdout.write(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()
