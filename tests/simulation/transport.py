"""A connection in memory: two ends, each with a transport for its protocol.

Theory of operation
-------------------
What an end writes travels as chunks. Each takes a time drawn from the link between the two hosts, and none overtakes
another of the same direction. When a chunk arrives, the kernel of the receiving host has it; its process reads it at
once if it runs and wants to read, or later. Chunks that wait are read as one.

**Invariants**

- The order of bytes, of the end of the stream and of a reset is that in which they were written.
- At most :data:`KERNEL` bytes are on their way or wait in the kernel; more stay in the buffer of the transport, which
  tells its protocol to pause as in asyncio.
- After a reset or an abort nothing is delivered in either direction.
- What a partition holds up is sent again when it ends, also after a close; a close without lingering discards it.
- What a dead process writes goes nowhere.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import Context, copy_context
from enum import Enum
from random import Random
from typing import TYPE_CHECKING, Any, Final, cast

from tests.simulation.host import Host, HostState

if TYPE_CHECKING:
    from tests.simulation.loop import SimulatedLoop
    from tests.simulation.network import Link, SimulatedServer

KERNEL: Final = 256 * 1024
"""Bytes of one direction that the kernels of both sides hold."""

_HIGH: Final = 64 * 1024
_PIECE: Final = 256 * 1024  # bytes that are read at once, as in asyncio
_WHOLE: Final = 0.5  # how often everything arrives that a dead process has written

Address = tuple[str, int]


class _Sign(Enum):
    END = "end"
    RESET = "reset"
    DISCARDED = "discarded"


class SimulatedSocket:
    """What a transport shows as its socket."""

    family = socket.AF_INET
    type = socket.SOCK_STREAM
    proto = socket.IPPROTO_TCP

    def __init__(self, own: Address, other: Address | None = None) -> None:
        self._own = own
        self._other = other
        self._descriptor = -1
        self.lingers = True

    def getsockname(self) -> Address:
        return self._own

    def getpeername(self) -> Address:
        if self._other is None:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        return self._other

    def setsockopt(self, level: int, option: int, value: int | bytes = 0) -> None:
        """All options are without effect but ``SO_LINGER``: with zero seconds, closing is a reset."""
        if (level, option) == (socket.SOL_SOCKET, socket.SO_LINGER) and isinstance(value, bytes):
            on, seconds = struct.unpack("ii", value)
            self.lingers = not (on and seconds == 0)

    def getsockopt(self, _level: int, _option: int) -> int:
        return 0

    def fileno(self) -> int:
        """A descriptor that is readable while something has arrived that was not read yet."""
        if self._descriptor < 0:
            self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        return self._descriptor

    def show(self, arrived: bool) -> None:
        """Make the descriptor readable, or not."""
        if self._descriptor >= 0:
            if arrived:
                os.eventfd_write(self._descriptor, 1)
            else:
                with suppress(BlockingIOError):
                    os.eventfd_read(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class SimulatedTransport(asyncio.Transport):
    """One end of a connection.

    Attributes:
        host: whose end it is; None: the world's.
        peer: the other end.
        is_client: whether this end has made the connection.
        silent: whether nothing arrives here any more (half-open).
        loses: whether what is written next is lost, and the connection reset.
    """

    peer: SimulatedTransport

    def __init__(
        self,
        loop: SimulatedLoop,
        host: Host | None,
        link: Link,
        own: Address,
        other: Address,
        *,
        is_client: bool,
    ) -> None:
        self.host = host
        self.is_client = is_client
        self.silent = False
        self.loses = False
        self.socket = SimulatedSocket(own, other)
        self._loop = loop
        self._link = link
        self._context = Context()
        self._protocol: asyncio.BaseProtocol | None = None
        self._receive: Callable[[bytes], None] | None = None  # data_received of a plain protocol
        self._paused = False  # the protocol wants to read nothing
        self._closing = False  # nothing is written or read any more
        self._closed = False  # connection_lost was called or will be
        self._ended = False  # the end of the stream was written
        self._inbox: list[bytes | _Sign] = []
        self._reading = False  # a handle that reads the inbox is kept until the host goes on
        self._flying: deque[list[bytes] | _Sign] = deque()  # what was written here and has not arrived there
        self._open: list[bytes] | None = None  # the chunk that was written at this instant
        self._open_at = -1.0
        self._arrives = 0.0  # when the last chunk arrives
        self._under_way = 0  # bytes that were written here and not read there
        self._limits = (_HIGH // 4, _HIGH)
        self._stopped = False  # the protocol was told to pause
        self._deaf_after: float | None = None  # what comes later was lost with its sender

    # What protocols use.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "socket":
            return self.socket
        if name == "peername":
            return self.socket._other
        if name == "sockname":
            return self.socket._own
        return default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        buffered = isinstance(protocol, asyncio.BufferedProtocol)
        self._receive = None if buffered else cast("asyncio.Protocol", protocol).data_received

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return not self._paused and not self._closing

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            if self._inbox and not self._closing:
                self._loop.call_soon(self._read, context=self._context)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        high = (_HIGH if low is None else 4 * low) if high is None else high
        self._limits = (high // 4 if low is None else low, high)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._limits

    def get_write_buffer_size(self) -> int:
        return max(0, self._under_way - KERNEL)

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if not data or self._closing or self._ended:
            return
        host = self.host
        if host is not None and host.state is HostState.DEAD:
            return
        if self.loses or (self._link.watched and self._link.loses(self, data)):
            self.loses = False
            self._loop.network.reset(self)
            return
        loop = self._loop
        if self._open is not None and self._open_at == loop._now:
            self._open.append(bytes(data))
        else:
            self._open = [bytes(data)]
            self._open_at = loop._now
            self._send(self._open)
        self._under_way += len(data)
        if self._under_way > KERNEL and not self._stopped and self.get_write_buffer_size() > self._limits[1]:
            self._stopped = True
            self.get_protocol().pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._ended and not self._closing:
            self._ended = True
            self._send(_Sign.END)

    def close(self) -> None:
        """Close the connection when everything is written."""
        if self._closing:
            return
        unread = bool(self._inbox)
        self._closing = True
        if self._is_dead():
            self._lose(None)
            return
        if not self.socket.lingers and self._link.closed_until > self._loop._now:
            self._flying = deque(_Sign.DISCARDED for _ in self._flying)
        if unread or not self.socket.lingers:
            self._send(_Sign.RESET)
        elif not self._ended:
            self._send(_Sign.END)
        if self.get_write_buffer_size() == 0:
            self._lose(None)

    def abort(self) -> None:
        """Close the connection without what is still in the buffer of the transport."""
        if self.get_write_buffer_size() and not self._closed and not self._is_dead():
            self._closing = True
            self._send(_Sign.RESET)
        self.close()
        self._lose(None)

    # What the network uses.

    def attach(self, protocol: asyncio.BaseProtocol, context: Context) -> None:
        """Give the end its protocol; callbacks have this context from now on."""
        self._context = context
        self.set_protocol(protocol)
        protocol.connection_made(self)
        if self._inbox and not self._paused:
            self._loop.call_soon(self._read, context=self._context)

    def accept(self, server: SimulatedServer) -> None:
        """Give the end a protocol of this listener as soon as its process runs."""
        handle = self._loop.arrival(self._accept, server, context=server.context.copy())
        if self.host is not None and self.host.state is HostState.FROZEN:
            self.host.keep(handle)
        else:
            self._loop.ready(handle)

    def _accept(self, server: SimulatedServer) -> None:
        if not server.is_serving():
            self.close()
        elif not self._closing:
            self.attach(server.factory(), copy_context())

    def break_off(self) -> None:
        """Reset the connection at both ends, after what is on its way."""
        for end in (self, self.peer):
            end._send(_Sign.RESET)
            end._ended = True

    def reset(self, error: Exception | None = None) -> None:
        """End the connection here, by a reset from the other side, or from the network."""
        self._inbox.clear()
        self._closing = True
        self._lose(error or ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))

    def vanish(self) -> None:
        """The process is dead: nothing is written or read here any more."""
        self.silent = True
        self._inbox.clear()
        self.socket.close()

    def forget(self) -> None:
        """The loop is closed: nothing happens any more."""
        self._closing = self._closed = True
        self.vanish()

    def die(self, random: Random) -> None:
        """The process is dead: a part of what is on its way arrives, then the end of the stream or a reset."""
        loop = self._loop
        if random.random() < _WHOLE:
            sign = random.choice((_Sign.END, _Sign.RESET))
        else:
            sign = _Sign.RESET
            self._arrives = loop.time() + random.random() * max(0.0, self._arrives - loop.time())
            self.peer._deaf_after = self._arrives
        self._send(sign)

    # Inside.

    def _is_dead(self) -> bool:
        return self.host is not None and self.host.state is HostState.DEAD

    def _send(self, chunk: list[bytes] | _Sign) -> None:
        loop = self._loop
        self._arrives = when = max(self._arrives, self._link.arrival(loop._now))
        self._flying.append(chunk)
        loop.call_at(when, self.peer._arrive, context=loop.network.kernel)
        if chunk.__class__ is not list:
            self._open = None

    def _arrive(self) -> None:
        """The kernel of this host has received the next chunk."""
        peer, loop = self.peer, self._loop
        link = peer._link
        if link.closed_until > loop._now:  # it is sent again when the network is whole
            peer._arrives = when = max(peer._arrives, link.arrival(loop._now))
            loop.call_at(when, self._arrive, context=loop.network.kernel)
            return
        chunk = peer._flying.popleft()
        if peer._open is chunk:
            peer._open = None
        if chunk is _Sign.DISCARDED:
            return
        if isinstance(chunk, list):
            if self.silent or self._closing or (self._deaf_after is not None and loop._now > self._deaf_after):
                self._refuse()
                return
            data = chunk[0] if len(chunk) == 1 else b"".join(chunk)
            if loop.note is not None or loop.network.observe is not None:
                loop.network.sent(peer, data)
            self._inbox.append(data)
        elif self.silent:
            return
        else:
            if chunk is _Sign.RESET:
                self._inbox.clear()
            self._inbox.append(chunk)
        self._wake(urgent=chunk is _Sign.RESET)

    def _refuse(self) -> None:
        """Answer data that no process will read: a reset, unless the machine has no power or does not hear."""
        host = self.host
        if host is not None and host.state is HostState.DEAD:
            if host.has_power or self._loop.hosts.get(host.name) is not host:
                self._send(_Sign.RESET)
        elif self._closed and not self.silent:
            self._send(_Sign.RESET)

    def _wake(self, *, urgent: bool) -> None:
        """Let the process read what has arrived, now or when it goes on."""
        host = self.host
        if host is not None and host.state is HostState.FROZEN:
            if not self._reading:
                self._reading = True
                self.socket.show(arrived=True)
                host.keep(self._loop.arrival(self._read, context=self._context))
        elif self._protocol is not None and not self._reading and (urgent or not self._paused):
            self._context.run(self._read)

    def _read(self) -> None:
        if self._reading:
            self._reading = False
            self.socket.show(arrived=False)
        inbox = self._inbox
        while inbox and not self._closing:
            first = inbox[0]
            if first is _Sign.RESET:
                self.reset()
                return
            if self._paused:
                return
            if first is _Sign.END:
                del inbox[0]
                self._end()
                return
            self._deliver(self._taken(inbox))
        if self._closing and inbox and inbox[0] is _Sign.RESET:
            inbox.clear()
            self._lose(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))

    def _taken(self, inbox: list[bytes | _Sign]) -> bytes:
        pieces: list[bytes] = []
        size = 0
        while inbox and isinstance(piece := inbox[0], bytes) and (not pieces or size + len(piece) <= _PIECE):
            pieces.append(piece)
            size += len(piece)
            del inbox[0]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _deliver(self, data: bytes) -> None:
        try:
            if self._receive is not None:
                self._receive(data)
            else:
                _into_buffer(cast("asyncio.BufferedProtocol", self._protocol), data)
        except Exception as error:  # noqa: BLE001 -- as in asyncio, it ends the connection
            self._loop.call_exception_handler({"message": "a protocol failed", "exception": error})
            self._closing = True
            self._send(_Sign.RESET)
            self._lose(error)
        self.peer._taken_over(len(data))

    def _taken_over(self, size: int) -> None:
        """The other side has read so much."""
        self._under_way -= size
        if self._stopped and self.get_write_buffer_size() <= self._limits[0]:
            self._stopped = False
            self._loop.call_soon(self.get_protocol().resume_writing, context=self._context)
        if self._closing and not self._closed and self.get_write_buffer_size() == 0:
            self._lose(None)

    def _end(self) -> None:
        keep_open = cast("asyncio.Protocol", self.get_protocol()).eof_received()
        if not keep_open:
            self.close()

    def _lose(self, error: Exception | None) -> None:
        if self._closed:
            return
        self._closed = self._closing = True
        self._loop.network.closed(self)
        if self._protocol is not None:
            self._loop.call_soon(self._lost, error, context=self._context)
        else:
            self.socket.close()

    def _lost(self, error: Exception | None) -> None:
        self.get_protocol().connection_lost(error)
        self.socket.close()
        self._receive = None


def _into_buffer(protocol: asyncio.BufferedProtocol, data: bytes) -> None:
    while data:
        buffer = memoryview(protocol.get_buffer(len(data)))
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        protocol.buffer_updated(size)
        data = data[size:]
