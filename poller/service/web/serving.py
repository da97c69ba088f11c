"""Serving HTTP beside the work: on the address of the configuration, as soon as it is free.

Law: an address that another process has is no reason to end. It is told once, with what to do, and tried again, so that
of two daemons on one machine the second takes the address over when the first one goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog

from poller.config.daemon import Address
from poller.errors import AddressTaken
from poller.http.listening import listening
from poller.stopping import unless

_SERVE_AGAIN: Final = 2.0  # seconds

_log = structlog.get_logger("poller.web")


async def serve(
    app: Any,
    address: Address,
    *,
    until: asyncio.Event,
    pause: Callable[[asyncio.Event, float], Awaitable[object]] = unless,
) -> None:
    """Serve an application until an event is set.

    Args:
        app: an ASGI 3 application.
        address: where to listen.
        until: ends it.
        pause: waits for the event, at most so many seconds.

    Raises:
        ConfigurationError: this machine does not have the address, or this user may not listen there.
    """
    told = False
    while not until.is_set():
        try:
            async with listening(app, *address) as url:
                _log.info("listening", page=f"{url}/")
                await until.wait()
        except AddressTaken as taken:
            if not told:
                told = True
                advice = 'it is taken over when it is free; or set http.bind or POLLER_HTTP_BIND to another, or "off"'
                _log.warning("not listening", error=str(taken), advice=advice)
            await pause(until, _SERVE_AGAIN)
