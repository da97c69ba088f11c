"""Connections to Redis: which promises a client makes before anything is said through it.

Law: a command is sent once. redis-py's own Redis() sends it ten more times when a reply is lost, and a script that
appends would append again. Whoever wants to try again does so knowingly: the commit, which recognises its own digest.

Two kinds, because a blocking read needs a longer wait than any other command may have: :func:`commands` and
:func:`blocking`.
Refuses to know: keys, scripts, feeds. Sentinel and Cluster URLs end at this seam for now.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final, Literal

from redis.asyncio import Connection, ConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.connection import HiredisRespSerializer

from poller.store.address import arguments, shown
from poller.store.translation import translated

__all__ = ["CONNECT_TIMEOUT", "REPLY_TIMEOUT", "Protocol", "blocking", "commands", "connect", "shown", "translated"]

Protocol = Literal[2, 3]
"""The version of RESP. 2 is understood by every server and has no unasked-for messages; nothing here needs 3."""

CONNECT_TIMEOUT: Final = timedelta(seconds=2)
REPLY_TIMEOUT: Final = timedelta(seconds=5)


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
        ConfigurationError: the URL cannot be used, or is one of Sentinel or Cluster.
    """
    settings = {
        "client_name": "poller",
        "decode_responses": False,
        "health_check_interval": 0,  # its PING would be one more reply to lose
        "protocol": protocol,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
        "socket_connect_timeout": CONNECT_TIMEOUT.total_seconds(),
        "socket_timeout": reply_timeout.total_seconds(),
    }
    taken = arguments(url) | settings
    return Redis.from_pool(ConnectionPool(**taken | {"connection_class": _packing(taken.get("connection_class"))}))


def _packing(kind: type[AbstractConnection] | None) -> type[AbstractConnection]:
    """A connection class that writes commands with hiredis, as redis-py's blocking client does by itself.

    Its asyncio client packs in Python, which costs more than all the rest of a commit.
    """
    base = kind or Connection
    pack = HiredisRespSerializer().pack
    return type(f"Packing{base.__name__}", (base,), {"pack_command": lambda _, *command: pack(*command)})
