"""HTTP server: serves an ASGI application within a running event loop.

**Invariants**

- Once the address is known, connections are answered; after the block no socket and no task is left.
- Requests that are not answered :data:`GRACE_SECONDS` after the block are dropped with their connections. That is no
  error: nothing of it is logged. Nor is a response that its route aborts (:class:`ResponseAborted`).
- Signals are not handled here.
- From the connection, and from the first byte of a later request, a request has :data:`REQUEST_SECONDS` to arrive with
  its body; then the connection is closed. The time of a response has no limit.
- A client that reads nothing of its response for :data:`STALLED_SECONDS` is disconnected, also after the connection was
  closed on this side.
- A listener holds a quarter of the descriptors for connections, :data:`MOST` at most; the others are for sources and
  sinks (:func:`descriptors_for`). When it is full, the connection that has waited longest for its client is closed; if
  all clients wait for responses, a new connection gets 503 and is closed.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Collection
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from fractions import Fraction
from functools import partial
from typing import Any, Final, Protocol

import h11
import structlog
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from poller.clock import Clock
from poller.errors import AddressTaken, ConfigurationError
from poller.http.transport import SOCKETS
from poller.limits import part_of

# A connection of uvicorn with time limits.

REQUEST_SECONDS: Final = 20.0
STALLED_SECONDS: Final = 60.0
_NO_ROOM: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 10\r\ncontent-length: 0\r\n"
    b"cache-control: no-store\r\n\r\n"
)


class DeadlineProtocol(H11Protocol):
    """A connection with time limits for its client."""

    def __init__(
        self,
        *given: Any,
        connections: ConnectionLimit,
        seconds: float = REQUEST_SECONDS,
        stalled: float = STALLED_SECONDS,
        **more: Any,
    ) -> None:
        """Begin with uvicorn's arguments, all connections of the listener, and the time limits."""
        super().__init__(*given, **more)
        self._all = connections
        self._seconds = seconds
        self._stalled = stalled
        self._deadline: asyncio.TimerHandle | None = None
        self._taking: asyncio.TimerHandle | None = None
        self._leaving: asyncio.TimerHandle | None = None

    def drop(self) -> None:
        """Close the connection now, even with unsent data."""
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """The connection is open; start the time of the first request."""
        super().connection_made(transport)
        if self._all.has_room(self):
            self._expect()
        else:
            transport.write(_NO_ROOM)
            self._close()

    def data_received(self, data: bytes) -> None:
        """Data of a request has arrived."""
        super().data_received(data)
        self._check_deadline()

    def on_response_complete(self) -> None:
        """A request was answered; data of the next one may have arrived already."""
        super().on_response_complete()
        self._check_deadline()

    def pause_writing(self) -> None:
        """The client reads more slowly than data is sent."""
        super().pause_writing()
        if self._taking is None:
            self._taking = self.loop.call_later(self._stalled, self.drop)
        self._wait()

    def resume_writing(self) -> None:
        """The client has read most of the data."""
        super().resume_writing()
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None
        self._wait()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection."""
        super().timeout_keep_alive_handler()
        self._part()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed; stop its timer."""
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
        """Record whether the connection waits for its client, or the client for a response."""
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
        """Start the time in which a closed connection may send its remaining data."""
        if self._leaving is None and self.transport.is_closing():
            self._leaving = self.loop.call_later(self._stalled, self.drop)


LONGEST_HEAD: Final = 32 * 1024  # bytes of a request's line and headers
GRACE_SECONDS: Final = 2
_PATIENCE_SECONDS: Final = 2 * GRACE_SECONDS  # for requests that do not end when they are dropped: a fault
_DATE_SECONDS: Final = 1
_NOTICED_SECONDS: Final = 0.1  # in which requests learn that their client has gone
_KEEP_ALIVE_SECONDS: Final = 75  # as in common servers; 5 s is too short under load
_BACKLOG: Final = 2048


class ResponseAborted(Exception):
    """A response that has begun cannot be completed: its connection is closed, so no client takes it for complete."""


class DroppableRequests:
    """An ASGI application whose requests may be cancelled once they are ``dropped``, which is no error then.

    Attributes:
        dropped: whether they may be.
        connections: of the server.
    """

    def __init__(self, app: Any) -> None:
        """Serve this application."""
        self.dropped = False
        self.connections: Collection[Any] = ()
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request."""
        try:
            await self._app(scope, receive, send)
        except ResponseAborted:
            for connection in list(self.connections):
                if connection.client == scope["client"]:
                    connection.transport.abort()
            while (await receive())["type"] != "http.disconnect":
                pass
        except asyncio.CancelledError:
            if not self.dropped:
                raise


class _SilentServer(uvicorn.Server):
    """A uvicorn server that handles no signals, reports when it listens, and drops what is left after the grace."""

    def __init__(self, config: uvicorn.Config, requests: DroppableRequests) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()
        self._stopped = asyncio.Event()
        self._requests = requests
        requests.connections = self.server_state.connections

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override] # same use, no generator needed
        return nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    async def main_loop(self) -> None:
        """Wait for :meth:`stop`, and set the header ``Date`` each second: uvicorn wakes up ten times in that."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(_DATE_SECONDS):
                    await self._stopped.wait()

    def stop(self) -> None:
        """Begin to end: accept no more connections, and give requests the grace."""
        self.should_exit = True
        self._stopped.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        dropping = asyncio.get_running_loop().call_later(GRACE_SECONDS, self._drop)
        try:
            await super().shutdown(sockets)
        finally:
            dropping.cancel()

    def _drop(self) -> None:
        """Close the connections, then cancel the requests that do not end by that."""
        self._requests.dropped = True
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        asyncio.get_running_loop().call_later(_NOTICED_SECONDS, self._cancel)

    def _cancel(self) -> None:
        for task in self.server_state.tasks:
            task.cancel()


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
    """Serve an application while the block runs. Yields the base URL, without a slash at its end.

    Args:
        app: an ASGI 3 application.
        host: the address to listen on.
        port: the port; 0: any free one.
        clock: of this process.
        longest_head: the greatest size of a request's line and headers, in bytes.
        request_seconds: the time for a request to arrive, body included.
        stalled_seconds: the time that a client may read nothing of its response.
        most: the greatest number of connections; None: as many as the limit of descriptors allows.

    Raises:
            AddressTaken: another process listens on this address.
            ConfigurationError: the address cannot be used.
    """
    most = most_connections() if most is None else most
    connections = ConnectionLimit(most, clock=clock)
    with listener(host, port) as sock:
        protocol = partial(DeadlineProtocol, connections=connections, seconds=request_seconds, stalled=stalled_seconds)
        requests = DroppableRequests(app)
        config = uvicorn.Config(
            requests,
            interface="asgi3",
            http=protocol,  # type: ignore[arg-type] # it is called, no more
            backlog=max(1, most // 4),  # accepted in one turn of the loop, before any can be refused
            h11_max_incomplete_event_size=longest_head,
            lifespan="off",
            ws="none",
            log_config=None,
            log_level="error",  # a client that sends no HTTP gets 400, without a warning
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=_PATIENCE_SECONDS,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        )
        server = _SilentServer(config, requests)
        served = asyncio.create_task(server.serve(sockets=[sock]), name="http server")
        started = asyncio.create_task(server.listening.wait())
        try:
            await asyncio.wait({served, started}, return_when=asyncio.FIRST_COMPLETED)
            if served.done():
                served.result()
            shown = f"[{host}]" if ":" in host else host
            sock.listen(_BACKLOG)  # this many may wait to be accepted; uvicorn has set its own backlog
            yield f"http://{shown}:{sock.getsockname()[1]}"
        finally:
            started.cancel()
            server.stop()
            await served


def listener(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        AddressTaken: another process listens on this address.
        ConfigurationError: the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the protocol is given; without it every small response takes 40 ms more.
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


# The limit of connections.

MOST: Final = 256
_QUARTER: Final = Fraction(1, 4)
_OWN: Final = 96  # descriptors that are no connections to clients, sources and sinks; the store has up to 64
_ENOUGH: Final = 65_536  # descriptors; more are useless
_USUAL: Final = 1024  # if the limit is unknown
_SAID_AGAIN: Final = 60.0  # seconds

_log = structlog.get_logger("poller.http")


class ClosableConnection(Protocol):
    """A connection that can be closed to make room."""

    def drop(self) -> None:
        """Close the connection now, even with unsent data."""


def descriptor_limit() -> int:
    """The number of descriptors that this process may have."""
    try:
        import resource  # noqa: PLC0415  # Windows has none
    except ImportError:
        return _USUAL
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _ENOUGH if soft == resource.RLIM_INFINITY else soft


def raise_descriptor_limit() -> None:
    """Raise the process's limit of descriptors as far as permitted and useful."""
    try:
        import resource  # noqa: PLC0415  # Windows has none
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def descriptors_for(part: Fraction) -> int:
    """The number of descriptors in a part of those for connections; some are kept for the store and the process."""
    limit = descriptor_limit()
    return part_of(limit - min(_OWN, int(limit * _QUARTER)), part)


def connections_for(part: Fraction) -> int:
    """The number of connections to servers for which this part suffices while all of them are being made."""
    return max(1, descriptors_for(part) // SOCKETS)


def most_connections() -> int:
    """The number of connections that a listener may hold."""
    return min(MOST, descriptors_for(_QUARTER))


class ConnectionLimit:
    """The connections of one listener, up to a limit."""

    def __init__(self, most: int, *, clock: Clock) -> None:
        """Begin with the limit and the clock of this process."""
        self._most = most
        self._clock = clock
        self._held: set[ClosableConnection] = set()
        self._waiting: dict[ClosableConnection, None] = {}
        self._said: float | None = None

    def has_room(self, one: ClosableConnection) -> bool:
        """Hold a new connection, which waits for its client. False: no room, and no other can be closed."""
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
        """Record whether a connection waits for its client, or its client for a response."""
        if not for_client:
            self._waiting.pop(one, None)
        elif one in self._held:
            self._waiting.setdefault(one)

    def forget(self, one: ClosableConnection) -> None:
        """Remove a closed connection."""
        self._held.discard(one)
        self._waiting.pop(one, None)

    def _say(self) -> None:
        now = self._clock.monotonic()
        if self._said is None or now - self._said >= _SAID_AGAIN:
            self._said = now
            advice = "connections that wait longest are closed; check who opens them, or put a proxy in front"
            _log.warning("no room for more HTTP connections", most=self._most, advice=advice)
