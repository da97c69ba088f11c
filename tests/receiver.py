"""A sink for tests: records requests, answers as a test sets it, and misbehaves on request.

    async with receiving() as sink:                      # 204 for everything
        sink.answer = [Reply(503), Reply(200)]           # in turn, the last one repeatedly
        sink.answer = lambda request: Reply(410) if b"x" in request.body else Reply()
        sink.answer = Held(event, Reply())               # not before the event is set
        await sink.received(3)                           # wait until three requests have arrived

An answer defines the bytes written (:class:`Reply`, :class:`Raw`, :class:`Pieces`, :class:`Drip`, :class:`Flood`) and,
by its ``then``, what happens to the connection. Connections are kept alive. The sink runs in the test's loop and
handles about ten thousand requests a second; :mod:`tests.receiver_process` runs it in a process of its own.
"""

from __future__ import annotations

import asyncio
import inspect
import select
import socket
import ssl
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Final, cast

from tests.harness.waiting import limited, turns

PATIENCE: Final = 20.0
"""Seconds that a test waits before it fails."""

_NO_LINGER: Final = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Received:
    """A request: headers as sent and in order; ``at`` is CLOCK_MONOTONIC in seconds, at its last byte.

    ``connection`` is the number of its connection, from 1.
    """

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    at: float
    connection: int = 1

    def header(self, name: str) -> str | None:
        """The value of the first header of this name, whatever its case."""
        return next((value for given, value in self.headers if given.lower() == name.lower()), None)


class Then(Enum):
    """What happens to the connection after an answer."""

    KEEP = "it is kept"
    CLOSE = "it is closed in order"
    RESET = "it is reset (RST)"
    HANG = "it stays open without further answers"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer of HTTP/1.1, with its length."""

    status: int = 204
    headers: Sequence[tuple[str, str]] = ()
    body: bytes = b""
    then: Then = Then.KEEP

    def encoded(self) -> bytes:
        lines = [f"HTTP/1.1 {self.status} Some Reason", *(f"{name}: {value}" for name, value in self.headers)]
        if self.status != 204:
            lines.append(f"Content-Length: {len(self.body)}")
        return "\r\n".join((*lines, "", "")).encode("latin-1") + self.body


@dataclass(frozen=True, slots=True)
class Raw:
    """Exactly these bytes."""

    written: bytes
    then: Then = Then.CLOSE


HANG: Final = Raw(b"", Then.HANG)
RESET: Final = Raw(b"", Then.RESET)
CLOSE: Final = Raw(b"", Then.CLOSE)


@dataclass(frozen=True, slots=True)
class Pieces:
    """These bytes, each piece in a segment of its own: a client in the test's loop reads it before the next."""

    pieces: Sequence[bytes]
    then: Then = Then.CLOSE


@dataclass(frozen=True, slots=True)
class Drip:
    """Some bytes, then a few more at intervals, without end."""

    first: bytes
    drop: bytes = b"x"
    every: float = 0.01


@dataclass(frozen=True, slots=True)
class Flood:
    """Some bytes, then a block repeatedly, as fast as the client reads."""

    first: bytes
    block: bytes


@dataclass(frozen=True, slots=True)
class Held:
    """Another answer, once an event is set."""

    until: asyncio.Event
    answer: Answer


Answer = Reply | Raw | Pieces | Drip | Flood | Held
Script = Answer | Sequence[Answer] | Callable[[Received], Answer | Awaitable[Answer]]


@dataclass(slots=True)
class Receiver:
    """A listening receiver.

    Attributes:
        url: its address without a path.
        answer: its answer from the next request on.
        requests: the requests so far; empty if ``recording`` is False.
        count: the number of requests so far.
        connections: how many connections were made.
        open: how many connections are open now.
    """

    url: str = ""
    answer: Script = field(default_factory=Reply)
    recording: bool = True
    requests: list[Received] = field(default_factory=list)
    count: int = 0
    connections: int = 0
    open: int = 0
    on_request: Callable[[Received], None] | None = None
    _watching: list[tuple[Callable[[], bool], asyncio.Future[None]]] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _protocols: set[_Connection] = field(default_factory=set)

    def has_left(self, connection: int) -> bool:
        """Whether the client has ended this connection, or is not there any more, although nobody has read that yet."""
        protocol = next((one for one in self._protocols if one.number == connection), None)
        if protocol is None or protocol.transport.is_closing():
            return True
        poll = select.poll()
        poll.register(protocol.transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))

    async def received(self, count: int) -> list[Received]:
        """The requests, once this many have arrived."""
        await self.until(lambda: self.count >= count, f"{count} requests")
        return self.requests

    async def until(self, true: Callable[[], bool], what: str = "it") -> None:
        """Wait until the condition holds, checked whenever a request arrives or a connection opens or closes."""
        if true():
            return
        seen = asyncio.get_running_loop().create_future()
        self._watching.append((true, seen))
        try:
            async with limited(PATIENCE):
                await seen
        except TimeoutError:
            raise AssertionError(f"waited in vain for {what}: {self.count} requests, {self.open} connections") from None

    def _changed(self) -> None:
        if self._watching:
            for true, seen in self._watching:
                if not seen.done() and true():
                    seen.set_result(None)
            self._watching = [(true, seen) for true, seen in self._watching if not seen.done()]

    def _take(self, request: Received) -> Answer | Awaitable[Answer]:
        self.count += 1
        if self.recording:
            self.requests.append(request)
        if self.on_request:
            self.on_request(request)
        self._changed()
        if callable(self.answer):
            return self.answer(request)
        if isinstance(self.answer, Sequence):
            first = self.answer[0]
            if len(self.answer) > 1:
                self.answer = self.answer[1:]
            return first
        return self.answer

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for protocol in list(self._protocols):
            protocol.transport.abort()
        await self.until(lambda: not self.open, "the connections' end")


class _Connection(asyncio.Protocol):
    """One connection: requests one after the other."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._buffer = bytearray()
        self._busy = False
        self._writable = asyncio.Event()
        self._writable.set()
        self.number = 0
        self._task: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's transport is one, but not by its class
        self._receiver.connections += 1
        self._receiver.open += 1
        self.number = self._receiver.connections
        self._receiver._protocols.add(self)
        self._receiver._changed()

    def connection_lost(self, _: Exception | None) -> None:
        self._receiver.open -= 1
        self._receiver._protocols.discard(self)
        if self._task:
            self._task.cancel()
        self._receiver._changed()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, received: bytes) -> None:
        self._buffer += received
        self._proceed()

    def _proceed(self) -> None:
        while not self._busy and (request := self._request()):
            answer = self._receiver._take(request)
            if isinstance(answer, (Reply, Raw)):
                self._say(answer)
            else:
                self._busy = True
                self._task = asyncio.create_task(self._later(answer))
                self._receiver._tasks.add(self._task)
                self._task.add_done_callback(self._receiver._tasks.discard)
                self._task.add_done_callback(partial(_close_unbegun, answer))

    async def _later(self, answer: Answer | Awaitable[Answer]) -> None:
        if inspect.isawaitable(answer):
            answer = await answer
        while isinstance(answer, Held):
            await answer.until.wait()
            answer = answer.answer
        if isinstance(answer, (Reply, Raw)):
            self._busy = False
            self._say(answer)
            self._proceed()
            return
        if isinstance(answer, Pieces):
            for piece in answer.pieces[:-1]:
                self.transport.write(piece)
                await turns(10)
            self._busy = False
            self._say(Raw(answer.pieces[-1], answer.then))
            self._proceed()
            return
        self.transport.write(answer.first)
        while not self.transport.is_closing():
            if isinstance(answer, Drip):
                await asyncio.sleep(answer.every)  # the delay is the fault
                self.transport.write(answer.drop)
            else:
                await self._writable.wait()
                await turns()
                self.transport.write(answer.block)

    def _say(self, answer: Reply | Raw) -> None:
        self.transport.write(answer.written if isinstance(answer, Raw) else answer.encoded())
        if answer.then is Then.CLOSE:
            self.transport.close()
        elif answer.then is Then.RESET:
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            self.transport.abort()
        self._busy = answer.then is not Then.KEEP

    def _request(self) -> Received | None:
        """The next complete request; None if it has not arrived yet."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return None
        first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ")
        headers = tuple((name, value.strip(" \t")) for name, _, value in (line.partition(":") for line in lines))
        length = next((int(value) for name, value in headers if name.lower() == "content-length"), 0)
        begin = end + 4
        if len(self._buffer) < begin + length:
            return None
        body = bytes(self._buffer[begin : begin + length])
        del self._buffer[: begin + length]
        return Received(method, target, headers, body, asyncio.get_running_loop().time(), self.number)


def _close_unbegun(answer: object, _: asyncio.Task[None]) -> None:
    """Close a coroutine; its client may have left before it began."""
    if inspect.iscoroutine(answer):
        answer.close()


@asynccontextmanager
async def receiving(
    answer: Script | None = None,
    *,
    tls: ssl.SSLContext | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    recording: bool = True,
) -> AsyncIterator[Receiver]:
    """A receiver on a socket during the block; afterwards no task and no connection is left."""
    receiver = Receiver(answer=Reply() if answer is None else answer, recording=recording)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(receiver), host, port, ssl=tls, backlog=2048)
    shown = f"[{host}]" if ":" in host else host
    receiver.url = f"http{'s' if tls else ''}://{shown}:{server.sockets[0].getsockname()[1]}"
    try:
        yield receiver
    finally:
        server.close()
        await receiver._close()
        await server.wait_closed()


FLOOD: Final = 64 * 1024 * 1024
"""The most bytes that :func:`flooded` sends."""


def flooded(server: socket.socket, after: threading.Event | None = None) -> int:
    """Answer one request, then send answers that nobody asked for. Returns the bytes that the client has taken.

    Args:
        server: listens.
        after: when to go on; None: at once.
    """
    answer, sent = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 0
    with closing(server.accept()[0]) as connection, suppress(ConnectionError):
        connection.settimeout(PATIENCE)
        connection.recv(65536)
        connection.sendall(answer)
        if after is not None:
            after.wait(PATIENCE)
        while sent < FLOOD:
            sent += connection.send(answer * 1000)
    return sent
