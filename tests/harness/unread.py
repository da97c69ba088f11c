"""A server that reads only what a test reads of it: the rest of a request waits in the kernel of its sender.

So it is with a request whose packets are lost on the way: the kernel keeps them, and sends them again for minutes.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

MANY = 400_000
"""Bytes of a request: more than the receiving side keeps, and less than its sender's kernel does."""

_KEPT = 4096
_AT_ONCE = 2**16


class Connection:
    """The server's side of a connection."""

    def __init__(self, accepted: socket.socket) -> None:
        self._socket = accepted

    async def read(self) -> bytes:
        """Some bytes; none at the end."""
        return await asyncio.get_running_loop().sock_recv(self._socket, _KEPT)

    async def write(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def rest(self) -> int:
        """How many bytes still come, until the end or a reset."""
        count = 0
        with suppress(ConnectionError):
            while some := await asyncio.get_running_loop().sock_recv(self._socket, _AT_ONCE):
                count += len(some)
        self._socket.close()
        return count


class Listener:
    """The server."""

    def __init__(self, listening: socket.socket) -> None:
        self._socket = listening
        self.port: int = listening.getsockname()[1]

    async def accepted(self) -> Connection:
        """The next connection."""
        found, _ = await asyncio.get_running_loop().sock_accept(self._socket)
        found.setblocking(False)
        return Connection(found)


@asynccontextmanager
async def unread() -> AsyncIterator[Listener]:
    """A listener on a loopback port whose connections receive little before they are read."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _KEPT)
        listening.setblocking(False)
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield Listener(listening)
