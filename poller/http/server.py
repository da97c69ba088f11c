"""An ASGI application on a socket, within a running loop.

**Invariants**

- Once the address is known, connections are answered; after the block no socket and no task is left.
- Signals are not handled here.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import Any, Final, Protocol

import h11
import structlog
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from poller.clock import Clock
from poller.errors import AddressTaken, ConfigurationError

# A connection of uvicorn that waits for no peer for ever, and holds one of a bounded number of places.
#
# **Invariants.**
#
# - From the connection on, and from the first byte of a later request on, there are :data:`REQUEST_SECONDS` until all
# of
#   its head and body is there; then the connection is closed. How long an answer takes is no matter of this.
# - A client that takes nothing of its answer for :data:`STALLED_SECONDS` is let go, and so is one that has not taken
# the
#   rest of it so long after the connection was closed here.
# - While there is no room (:mod:`poller.http.server`), a connection that waits for its client may be dropped.

REQUEST_SECONDS: Final = 20.0
STALLED_SECONDS: Final = 60.0
_NO_ROOM: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 10\r\ncontent-length: 0\r\n"
    b"cache-control: no-store\r\n\r\n"
)


class DeadlineProtocol(H11Protocol):
    """One connection."""

    def __init__(
        self,
        *given: Any,
        connections: ConnectionLimit,
        seconds: float = REQUEST_SECONDS,
        stalled: float = STALLED_SECONDS,
        **more: Any,
    ) -> None:
        """Take what uvicorn gives, all connections of the listener, and how long each kind of waiting may take."""
        super().__init__(*given, **more)
        self._all = connections
        self._seconds = seconds
        self._stalled = stalled
        self._deadline: asyncio.TimerHandle | None = None
        self._taking: asyncio.TimerHandle | None = None
        self._leaving: asyncio.TimerHandle | None = None

    def drop(self) -> None:
        """Close it now, whatever has not been sent yet."""
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """It is there, and the first request is due."""
        super().connection_made(transport)
        if self._all.has_room(self):
            self._expect()
        else:
            transport.write(_NO_ROOM)
            self._close()

    def data_received(self, data: bytes) -> None:
        """Some of a request has come, or all of it."""
        super().data_received(data)
        self._check_deadline()

    def on_response_complete(self) -> None:
        """One was answered; some of the next may have come before that."""
        super().on_response_complete()
        self._check_deadline()

    def pause_writing(self) -> None:
        """The client does not take what is sent as fast as it is sent."""
        super().pause_writing()
        if self._taking is None:
            self._taking = self.loop.call_later(self._stalled, self.drop)
        self._wait()

    def resume_writing(self) -> None:
        """It has taken most of it."""
        super().resume_writing()
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None
        self._wait()

    def timeout_keep_alive_handler(self) -> None:
        """No further request has come."""
        super().timeout_keep_alive_handler()
        self._part()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone, and nothing is due any more."""
        super().connection_lost(exc)
        self._all.forget(self)
        self._relax()
        for timer in (self._taking, self._leaving):
            if timer is not None:
                timer.cancel()

    def _check_deadline(self) -> None:
        their, first = self.conn.their_state, self.headers is None
        if their is h11.SEND_BODY or (their is h11.IDLE and (first or self.conn.trailing_data[0])):
            self._expect()
        else:
            self._relax()
        self._wait()
        self._part()

    def _wait(self) -> None:
        """Note for whom it waits: for its client to say more or to take more, or the client for an answer."""
        slow = self._taking is not None
        self._all.waits(self, for_client=slow or self.conn.their_state in {h11.SEND_BODY, h11.IDLE})

    def _expect(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self._seconds, self._close)

    def _relax(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close(self) -> None:
        self.transport.close()
        self._part()

    def _part(self) -> None:
        """What is closed here and still has something to send has so long to send it."""
        if self._leaving is None and self.transport.is_closing():
            self._leaving = self.loop.call_later(self._stalled, self.drop)


LONGEST_HEAD: Final = 32 * 1024  # bytes of a request's line and headers
_GRACE_SECONDS: Final = 2
_KEEP_ALIVE_SECONDS: Final = 75  # as common servers have it; a client of 5 s finds its connection closed under load
_BACKLOG: Final = 2048


class _SilentServer(uvicorn.Server):
    """uvicorn that leaves signals alone and tells when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override] # same use, no generator needed
        return nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()


@asynccontextmanager
async def listening(
    app: Any,
    host: str,
    port: int,
    *,
    clock: Clock,
    longest_head: int = LONGEST_HEAD,
    request_seconds: float = REQUEST_SECONDS,
    stalled_seconds: float = STALLED_SECONDS,
    most: int | None = None,
) -> AsyncIterator[str]:
    """Serve an application while the block runs; gives the base URL, without a slash at its end.

    Args:
        app: an ASGI 3 application.
        host: the address to listen on.
        port: the port; 0 for any that is free.
        clock: of this process.
        longest_head: bytes of a request's line and headers at most.
        request_seconds: until a request that was begun has to be there, body included.
        stalled_seconds: that a client may take nothing of its answer.
        most: connections at a time; None: as many as the limit of descriptors allows.

    Raises:
        AddressTaken: another process listens there.
        ConfigurationError: the address cannot be listened on.
    """
    most = most_connections() if most is None else most
    connections = ConnectionLimit(most, clock=clock)
    with listener(host, port) as sock:
        protocol = partial(DeadlineProtocol, connections=connections, seconds=request_seconds, stalled=stalled_seconds)
        config = uvicorn.Config(
            app,
            interface="asgi3",
            http=protocol,  # type: ignore[arg-type] # it is called, no more
            backlog=max(1, most // 4),  # this many are accepted in one turn of the loop, before any can be refused
            h11_max_incomplete_event_size=longest_head,
            lifespan="off",
            ws="none",
            log_config=None,
            log_level="error",  # a client that sends no HTTP is answered 400, and is no warning to anybody
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=_GRACE_SECONDS,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        )
        server = _SilentServer(config)
        served = asyncio.create_task(server.serve(sockets=[sock]), name="http server")
        started = asyncio.create_task(server.listening.wait())
        try:
            await asyncio.wait({served, started}, return_when=asyncio.FIRST_COMPLETED)
            if served.done():
                served.result()
            shown = f"[{host}]" if ":" in host else host
            sock.listen(_BACKLOG)  # this many may wait to be accepted: uvicorn has set this to its own backlog
            yield f"http://{shown}:{sock.getsockname()[1]}"
        finally:
            started.cancel()
            server.should_exit = True
            await served


def listener(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        AddressTaken: another one does.
        ConfigurationError: it cannot.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only where the protocol is spelled out; without it every small answer takes 40 ms more.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
        return sock
    except OSError as error:
        sock.close()
        kind = AddressTaken if error.errno == errno.EADDRINUSE else ConfigurationError
        raise kind(f"cannot listen on {host} port {port}: {error.strerror or error}") from error


# A listener holds a quarter of the descriptors of this process, :data:`MOST` at most; the others are kept for the
# store, sources and sinks. When it is full, the connection closes that has waited longest for its client; where every
# client waits for an answer, the new one is answered 503 and closed.

MOST: Final = 256
_QUARTER: Final = 4
_ENOUGH: Final = 65_536  # descriptors; a limit of millions is no use
_USUAL: Final = 1024  # where the limit is not known
_SAID_AGAIN: Final = 60.0  # seconds

_log = structlog.get_logger("poller.http")


class ClosableConnection(Protocol):
    """A connection that can be given up."""

    def drop(self) -> None:
        """Close it now, whatever has not been sent yet."""


def descriptor_limit() -> int:
    """How many descriptors this process may have."""
    try:
        import resource  # noqa: PLC0415  # Windows has none
    except ImportError:
        return _USUAL
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _ENOUGH if soft == resource.RLIM_INFINITY else soft


def raise_descriptor_limit() -> None:
    """Have as many descriptors as this process may give itself, up to what is any use."""
    try:
        import resource  # noqa: PLC0415  # Windows has none
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_connections() -> int:
    """How many connections a listener may hold."""
    return max(1, min(MOST, descriptor_limit() // _QUARTER))


class ConnectionLimit:
    """Those of one listener."""

    def __init__(self, most: int, *, clock: Clock) -> None:
        """Take how many there may be, and the clock of this process."""
        self._most = most
        self._clock = clock
        self._held: set[ClosableConnection] = set()
        self._waiting: dict[ClosableConnection, None] = {}
        self._said: float | None = None

    def has_room(self, one: ClosableConnection) -> bool:
        """Hold a new connection, which waits for its client; False: there is no room, and no other could go."""
        if len(self._held) >= self._most:
            self._say()
            longest = next(iter(self._waiting), None)
            if longest is None:
                return False
            self.forget(longest)
            longest.drop()
        self._held.add(one)
        self._waiting[one] = None
        return True

    def waits(self, one: ClosableConnection, *, for_client: bool) -> None:
        """Note whether a connection waits for its client, or its client for an answer."""
        if not for_client:
            self._waiting.pop(one, None)
        elif one in self._held:
            self._waiting.setdefault(one)

    def forget(self, one: ClosableConnection) -> None:
        """It is closed."""
        self._held.discard(one)
        self._waiting.pop(one, None)

    def _say(self) -> None:
        now = self._clock.monotonic()
        if self._said is None or now - self._said >= _SAID_AGAIN:
            self._said = now
            advice = "those that wait longest for their client are closed; see who opens them, or put a proxy in front"
            _log.warning("no room for more HTTP connections", most=self._most, advice=advice)
