"""The sandbox on a socket, within a running loop.

Law: once the address is known, connections to it are answered; once the block is left, nothing of it is left: no
socket, no task. Signals are left to whoever runs the loop.

It does not know: what is served, beyond that it changes.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from poller.http.listening import listening
from poller.sandbox.answer import answer
from poller.sandbox.mutate import mutate
from poller.sandbox.rate import repeat
from poller.sandbox.server import application
from poller.sandbox.wire import with_connection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from random import Random

    from poller.sandbox.answer import Respond
    from poller.sandbox.model import History
    from poller.sandbox.profiles.choice import Choice

LOOPBACK = "127.0.0.1"
SANDBOX_TOKEN = "sandbox"  # noqa: S105 - public on purpose: the contract names it

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
    app = application(history, token=token, rng=rng, now=now, respond=respond, choices=choices)
    async with listening(with_connection(app), host, port, longest_head=_LONGEST_HEAD) as url:
        changes = asyncio.create_task(
            repeat(lambda: mutate(history, rng, now()), per_second=changes_per_second), name="sandbox changes"
        )
        try:
            yield url
        finally:
            changes.cancel()
            with suppress(asyncio.CancelledError):
                await changes
