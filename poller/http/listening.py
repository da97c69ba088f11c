"""An ASGI application on a socket, within a running loop.

Law: once the address is known, connections to it are answered; once the block is left, nothing of it is left: no
socket, no task. Signals are left to whoever runs the loop.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import Any, Final

import uvicorn

from poller.errors import AddressTaken, ConfigurationError
from poller.http.connections import Connections, most_connections
from poller.http.deadlines import REQUEST_SECONDS, STALLED_SECONDS, PromptProtocol

LONGEST_HEAD: Final = 32 * 1024  # bytes of a request's line and headers
_GRACE_SECONDS: Final = 2
_KEEP_ALIVE_SECONDS: Final = 75  # as common servers have it; a client of 5 s finds its connection closed under load
_BACKLOG: Final = 2048


class _Server(uvicorn.Server):
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
        longest_head: bytes of a request's line and headers at most.
        request_seconds: until a request that was begun has to be there, body included.
        stalled_seconds: that a client may take nothing of its answer.
        most: connections at a time; None: as many as the limit of descriptors allows.

    Raises:
        AddressTaken: another process listens there.
        ConfigurationError: the address cannot be listened on.
    """
    most = most_connections() if most is None else most
    connections = Connections(most, clock=asyncio.get_running_loop().time)
    with listener(host, port) as sock:
        protocol = partial(PromptProtocol, connections=connections, seconds=request_seconds, stalled=stalled_seconds)
        config = uvicorn.Config(
            app,
            interface="asgi3",
            http=protocol,  # type: ignore[arg-type] # it is called, no more
            backlog=max(1, most // 4),  # so many are accepted in one turn of the loop, before any can be refused
            h11_max_incomplete_event_size=longest_head,
            lifespan="off",
            ws="none",
            log_config=None,
            log_level="error",  # whoever sends what is no HTTP is answered 400, and is no warning to anybody
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=_GRACE_SECONDS,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        )
        server = _Server(config)
        served = asyncio.create_task(server.serve(sockets=[sock]), name="http server")
        started = asyncio.create_task(server.listening.wait())
        try:
            await asyncio.wait({served, started}, return_when=asyncio.FIRST_COMPLETED)
            if served.done():
                served.result()
            shown = f"[{host}]" if ":" in host else host
            sock.listen(_BACKLOG)  # so many may wait to be accepted: uvicorn has set this to its own backlog
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
