"""The sandbox on a socket, within a running loop.

Law: once the address is known, connections to it are answered; once the block is left, nothing of it is left: no
socket, no task. Signals are left to whoever runs the loop.

It does not know: what is served, beyond that it changes.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager, nullcontext, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import uvicorn

from poller.errors import ConfigurationError
from poller.sandbox.answer import answer
from poller.sandbox.mutate import mutate
from poller.sandbox.rate import repeat
from poller.sandbox.server import application
from poller.sandbox.wire import with_connection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from contextlib import AbstractContextManager
    from random import Random

    from poller.sandbox.answer import Respond
    from poller.sandbox.model import History
    from poller.sandbox.profiles.choice import Choice

LOOPBACK = "127.0.0.1"
SANDBOX_TOKEN = "sandbox"  # noqa: S105 - public on purpose: the contract names it

_GRACE_SECONDS = 2
_BACKLOG = 2048
_LONGEST_HEAD = 256 * 1024  # bytes; the profile page-token-64k has its tokens come back


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


@asynccontextmanager
async def serving(
    history: History,
    *,
    rng: Random,
    host: str = LOOPBACK,
    port: int = 0,
    token: str = SANDBOX_TOKEN,
    changes_per_second: float = 0.0,
    now: Callable[[], datetime] = utc_now,
    respond: Respond = answer,
    choices: Sequence[Choice] = (),
) -> AsyncIterator[str]:
    """Serve a history while the block runs; gives the base URL, without a slash at its end.

    Args:
        history: what is served; the block may change it too.
        rng: where the sandbox's own changes and ids come from.
        host: the address to listen on.
        port: the port; 0 for any that is free.
        token: the bearer token that the API asks for.
        changes_per_second: how many changes the sandbox makes by itself.
        now: the time of changes, UTC.
        respond: decides the answers of the API's endpoints.
        choices: the profiles and faults around it.

    Raises:
        ConfigurationError: the address cannot be listened on.
    """
    listener = _listener(host, port)
    shown_host = f"[{host}]" if ":" in host else host
    url = f"http://{shown_host}:{listener.getsockname()[1]}"
    app = application(history, token=token, rng=rng, now=now, respond=respond, choices=choices)
    config = uvicorn.Config(
        with_connection(app),
        interface="asgi3",
        h11_max_incomplete_event_size=_LONGEST_HEAD,
        lifespan="off",
        ws="none",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    async with _listening(_Server(config), listener):
        changes = asyncio.create_task(
            repeat(lambda: mutate(history, rng, now()), per_second=changes_per_second), name="sandbox changes"
        )
        try:
            yield url
        finally:
            changes.cancel()
            with suppress(asyncio.CancelledError):
                await changes


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
async def _listening(server: _Server, listener: socket.socket) -> AsyncIterator[None]:
    with listener:
        served = asyncio.create_task(server.serve(sockets=[listener]), name="sandbox server")
        listening = asyncio.create_task(server.listening.wait())
        try:
            await asyncio.wait({served, listening}, return_when=asyncio.FIRST_COMPLETED)
            if served.done():
                served.result()
            yield
        finally:
            listening.cancel()
            server.should_exit = True
            await served


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only where the protocol is spelled out; without it every small answer takes 40 ms more.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
        return listener
    except OSError as error:
        listener.close()
        raise ConfigurationError(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
