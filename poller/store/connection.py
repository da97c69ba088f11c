"""Connections to Redis: which promises a client makes before anything is said through it.

Law: a command is sent once. redis-py's own Redis() sends it ten more times when a reply is lost, and a script that
appends would append again. Whoever wants to try again does so knowingly: the commit, which recognises its own digest.

Two kinds, because a blocking read needs a longer wait than any other command may have: :func:`commands` and
:func:`blocking`.
Refuses to know: keys, scripts, feeds. Sentinel and Cluster URLs end at this seam for now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, ClassVar, Final, Literal

from redis.asyncio import BlockingConnectionPool, Connection, Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.connection import HiredisRespSerializer
from redis.typing import EncodableT

from poller.store.address import arguments, shown
from poller.store.tls import check_files
from poller.store.translation import translated

__all__ = ["CONNECT_TIMEOUT", "REPLY_TIMEOUT", "Protocol", "blocking", "commands", "connect", "shown", "translated"]

Protocol = Literal[2, 3]
"""The version of RESP. 2 is understood by every server and has no unasked-for messages; nothing here needs 3."""

CONNECT_TIMEOUT: Final = timedelta(seconds=2)
REPLY_TIMEOUT: Final = timedelta(seconds=5)
CONNECTIONS: Final = 64
"""Of one client at most. A command beyond them waits for its turn, as long as it may wait for its reply."""


def commands(url: str, *, protocol: Protocol = 2) -> Redis:
    """A client for everything that answers at once: five seconds for a reply, two for a connection."""
    return connect(url, reply_timeout=REPLY_TIMEOUT, protocol=protocol)


def blocking(url: str, *, block: timedelta, protocol: Protocol = 2) -> Redis:
    """A client with connections of its own for XREAD and XREADGROUP that BLOCK at most ``block``."""
    return connect(url, reply_timeout=block + REPLY_TIMEOUT, protocol=protocol)


def connect(url: str, *, reply_timeout: timedelta, protocol: Protocol = 2) -> Redis:
    """A client of redis://, rediss:// or unix:// that never repeats a command and returns bytes.

    Connects with its first command, and again with the next one after a failure. Close it with ``aclose()``.

    Raises:
        ConfigurationError: the URL or a file that it names cannot be used, or it is one of Sentinel or Cluster.
    """
    settings: dict[str, Any] = {
        "client_name": "poller",
        "driver_info": None,  # two commands for each connection, which a strict user may not say
        "decode_responses": False,
        "health_check_interval": 0,  # its PING would be one more reply to lose
        "protocol": protocol,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
        "socket_connect_timeout": CONNECT_TIMEOUT.total_seconds(),
        "socket_timeout": reply_timeout.total_seconds(),
    }
    taken = arguments(url) | settings
    check_files(taken, shown=shown(url))
    base = taken.get("connection_class", Connection)
    ours = type(f"Our{base.__name__}", (_OurConnection, base), {})
    pool = {"connection_class": ours, "max_connections": CONNECTIONS, "timeout": reply_timeout.total_seconds()}
    return Redis.from_pool(BlockingConnectionPool(**taken | pool))


class _OurConnection(AbstractConnection):
    """What redis-py's asyncio connections do at a price that is not ours to pay. Mixed into its connection classes."""

    _pack: ClassVar[Callable[..., list[bytes]]] = HiredisRespSerializer().pack

    def pack_command(self, *args: EncodableT) -> list[bytes]:
        """By hiredis, as the blocking client does: packing in Python costs more than all the rest of a commit."""
        return self._pack(*args)

    async def send_packed_command(
        self,
        command: bytes | str | Iterable[bytes],
        check_health: bool = True,  # noqa: FBT001, FBT002 -- as there
    ) -> None:
        """Without ``asyncio.wait_for``, which before Python 3.12 swallows a cancellation now and then."""
        limit, self.socket_timeout = self.socket_timeout, None
        try:
            async with asyncio.timeout(limit):
                await super().send_packed_command(command, check_health=check_health)
        finally:
            self.socket_timeout = limit
