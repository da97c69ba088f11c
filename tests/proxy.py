"""A proxy in front of Redis that breaks on request: the faults of a network, at the command a test names.

It knows where a command and its reply begin and end, sends one command at a time and waits for its whole reply. So a
reply that it loses is one whose command was carried out. Not for subscriptions: it expects one reply to each command.

::

    async with proxied(server.url) as proxy:
        proxy.lose_reply(to=b"EVALSHA")
        …  # a client of proxy.url runs a script: it was executed, and the connection is closed instead of the reply
        assert proxy.times(b"EVALSHA") == 1
"""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import unquote, urlsplit

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Action = Literal["lose", "cut", "hold", "reset", "silence"]

_BYTES: Final = b"$=!"
_MANY: Final = {b"*": 1, b"~": 1, b">": 1, b"%": 2, b"|": 2}
_LIMIT: Final = 2**26


@dataclass(slots=True, eq=False)
class Fault:
    """What to do to which commands.

    Attributes:
        struck: set when the fault first happens.
        freed: set by a test to release a held reply.
    """

    action: Action
    to: bytes
    times: int
    skip: int
    after: int = 0
    struck: asyncio.Event = field(default_factory=asyncio.Event)
    freed: asyncio.Event = field(default_factory=asyncio.Event)

    def strikes(self, command: bytes) -> bool:
        if not self.times or self.to.upper() not in command.upper():
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return True


class Proxy:
    """Made by :func:`proxied`. ``url`` is the address for clients; ``commands`` are all commands, as sent."""

    def __init__(self, upstream: str) -> None:
        self.url = ""
        self.commands: list[bytes] = []
        self._upstream = upstream
        self._faults: list[Fault] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def place(self) -> str:
        """Host and port of ``url``."""
        return urlsplit(self.url).netloc

    def lose_reply(self, *, to: bytes, times: int = 1, skip: int = 0) -> Fault:
        """Execute the command, drop its reply, close the connection. The first ``skip`` matches pass."""
        return self._add(Fault("lose", to, times, skip))

    def cut_reply(self, *, to: bytes, after: int, times: int = 1, skip: int = 0) -> Fault:
        """Like :meth:`lose_reply`, but the first ``after`` bytes of the reply arrive."""
        return self._add(Fault("cut", to, times, skip, after))

    def hold_reply(self, *, to: bytes, times: int = 1, skip: int = 0) -> Fault:
        """Execute the command and hold its reply until ``fault.freed.set()``."""
        return self._add(Fault("hold", to, times, skip))

    def silence(self, *, to: bytes, times: int = 1, skip: int = 0) -> Fault:
        """Make the connection half-open: the command does not arrive, nothing is answered or closed."""
        return self._add(Fault("silence", to, times, skip))

    def reset(self, *, to: bytes, times: int = 1, skip: int = 0) -> Fault:
        """Drop the command and reset the client's connection."""
        return self._add(Fault("reset", to, times, skip))

    def times(self, text: bytes) -> int:
        """How many commands contain ``text``, including those that did not arrive."""
        return sum(text.upper() in command.upper() for command in self.commands)

    def _add(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        return fault

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client: command, fault or reply, until either side closes."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        to_server: asyncio.StreamWriter | None = None
        try:
            from_server, to_server = await _connected(self._upstream)
            while True:
                command = await _whole(reader)
                self.commands.append(command)
                fault = next((fault for fault in self._faults if fault.strikes(command)), None)
                if fault is not None and fault.action in ("reset", "silence"):
                    await _withheld(fault, reader, writer)
                    return
                to_server.write(command)
                reply = await _whole(from_server)
                if fault is not None and not await _passed(fault, reply, writer):
                    return
                writer.write(reply)
                await writer.drain()
        except (OSError, EOFError, asyncio.CancelledError):
            return  # one side closed, or the test is over; nothing awaits this task
        finally:
            self._tasks.discard(task)
            for side in (writer, to_server):
                if side is not None:
                    side.close()

    async def close(self) -> None:
        """End every connection."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def proxied(upstream: str) -> AsyncIterator[Proxy]:
    """A proxy on a loopback port in front of ``upstream``, a redis:// or unix:// URL without credentials.

    Skips the test if that is more than one server, because its clients would bypass the proxy.
    """
    parts = urlsplit(upstream)
    if "+" in parts.scheme:
        pytest.skip("a proxy needs a single server")
    proxy = Proxy(upstream)
    listener = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=_LIMIT)
    proxy.url = f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}" + (parts.query and f"?{parts.query}")
    try:
        yield proxy
    finally:
        listener.close()
        await proxy.close()
        await listener.wait_closed()


async def _connected(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return await asyncio.open_unix_connection(unquote(parts.path), limit=_LIMIT)
    return await asyncio.open_connection(parts.hostname, parts.port, limit=_LIMIT)


async def _withheld(fault: Fault, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    fault.struck.set()
    if fault.action == "silence":
        while await reader.read(2**16):
            pass  # until the client gives up
        return
    raw: socket.socket = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close means RST


async def _passed(fault: Fault, reply: bytes, writer: asyncio.StreamWriter) -> bool:
    """Whether the reply still goes to the client."""
    fault.struck.set()
    if fault.action == "hold":
        await fault.freed.wait()
        return True
    writer.write(reply[: fault.after])
    await writer.drain()
    return False


async def _whole(reader: asyncio.StreamReader) -> bytes:
    """One command or one reply, RESP2 or RESP3, exactly as sent."""
    head = await reader.readuntil(b"\n")
    kind, count = head[:1], head[1:].strip()
    if kind in _BYTES and count != b"-1":
        return head + await reader.readexactly(int(count) + 2)
    if kind in _MANY:
        parts = [await _whole(reader) for _ in range(int(count) * _MANY[kind])]
        attributed = await _whole(reader) if kind == b"|" else b""
        return head + b"".join(parts) + attributed
    return head
