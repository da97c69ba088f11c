"""Serves an ASGI application on the simulated network, by uvicorn's own HTTP protocol.

uvicorn's server is left out: it would look ten times a second whether it has to end.
"""

from __future__ import annotations

import asyncio
from email.utils import formatdate
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from tests.simulation.host import HOST


class _DatedState(ServerState):
    """The state of a server whose responses have the date of its host's clock."""

    def __init__(self) -> None:
        self._other: list[tuple[bytes, bytes]] = []
        super().__init__()

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        host = HOST.get()
        if host is None:
            return self._other
        return [(b"date", formatdate(host.clock.now().timestamp(), usegmt=True).encode()), *self._other]

    @default_headers.setter
    def default_headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        self._other = headers


async def serve(app: Any, host: str, port: int, *, keep_alive: int = 75) -> asyncio.AbstractServer:
    """Serve an application at an address of the current host until the server is closed.

    Args:
        app: an ASGI 3 application; it is told of no start and no end.
        host: the address to listen on.
        port: the port; 0: any free one.
        keep_alive: seconds after which an idle connection is closed.
    """
    config = uvicorn.Config(
        app,
        interface="asgi3",
        http=H11Protocol,
        lifespan="off",
        ws="none",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=keep_alive,
    )
    config.load()
    state = _DatedState()

    def protocol() -> H11Protocol:
        return H11Protocol(config=config, server_state=state, app_state={})

    return await asyncio.get_running_loop().create_server(protocol, host, port)
