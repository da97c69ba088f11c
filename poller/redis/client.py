"""Clients of Redis: one server, a primary found through Sentinel, or a Cluster.

The URL alone decides which. :func:`blocking` is separate from :func:`commands` because a blocking read waits longer
than any other command may.

**Invariants**

- A command is sent once, whatever the URL. Only code that can tell whether its command was carried out sends it again,
  such as the commit, which recognises its own digest. See :mod:`poller.redis.single` and :mod:`poller.redis.cluster`.
- Keys, scripts and feeds are unknown here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final, Literal

from redis.asyncio import Redis

from poller.clock import Clock
from poller.errors import StoreUnavailable
from poller.redis.cluster import ClusterClient
from poller.redis.errors import check_files, translated
from poller.redis.single import CONNECT_TIMEOUT, CONNECTIONS, EmbeddedConnection, sentinel_client, single_client
from poller.redis.url import CLUSTER, SENTINEL, arguments, kind_of, place_of, shown

__all__ = [
    "CONNECTIONS",
    "CONNECT_TIMEOUT",
    "EMBEDDED",
    "REPLY_TIMEOUT",
    "Protocol",
    "blocking",
    "commands",
    "connect",
    "scattered",
    "servers",
    "shown",
    "translated",
    "until_answered",
]

Protocol = Literal[2, 3]
"""The version of RESP. Every server understands 2, which has no push messages; nothing here needs 3."""

REPLY_TIMEOUT: Final = timedelta(seconds=5)
_NO_TYPES: Final[Mapping[str, str]] = MappingProxyType({})

EMBEDDED: Final = "#embedded"
"""At the end of a ``unix://`` URL: the server is this program's own, and another user's is refused."""


def commands(
    url: str,
    *,
    protocol: Protocol | None = None,
    key_types: Mapping[str, str] = _NO_TYPES,
    clock: Clock | None = None,
) -> Redis:
    """A client for commands that do not block: five seconds for a reply, two for a connection."""
    return connect(url, reply_timeout=REPLY_TIMEOUT, protocol=protocol, key_types=key_types, clock=clock)


def blocking(
    url: str,
    *,
    block: timedelta,
    protocol: Protocol | None = None,
    key_types: Mapping[str, str] = _NO_TYPES,
    clock: Clock | None = None,
) -> Redis:
    """A client with connections of its own for XREAD and XREADGROUP that BLOCK at most ``block``."""
    return connect(url, reply_timeout=block + REPLY_TIMEOUT, protocol=protocol, key_types=key_types, clock=clock)


def connect(
    url: str,
    *,
    reply_timeout: timedelta,
    protocol: Protocol | None = None,
    key_types: Mapping[str, str] = _NO_TYPES,
    clock: Clock | None = None,
) -> Redis:
    """A client that never repeats a command and returns bytes.

    Connects with its first command, and again with the next one after a failure. Close it with ``aclose()``.

    Args:
        url: redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://.
        reply_timeout: how long to wait for a reply.
        protocol: overrides the URL's option. Default: 2.
        key_types: the type of a key by what follows its last colon, for errors about a key of another type.
        clock: of this process; a new one by default.

    Raises:
        ConfigurationError: the URL or a file that it names cannot be used.
    """
    spoken = {} if protocol is None else {"protocol": protocol}
    if kind_of(url) == SENTINEL:
        place = place_of(url, spoken)
        check_files(place.arguments, shown=shown(url))
        return sentinel_client(place, reply_timeout=reply_timeout, key_types=key_types)
    if kind_of(url) == CLUSTER:
        place = place_of(url, spoken)
        check_files(place.arguments, shown=shown(url))
        return ClusterClient(
            place.hosts,
            lambda one: single_client(
                {**place.arguments, "host": one.host, "port": one.port},
                reply_timeout=reply_timeout,
                key_types=key_types,
            ),
            clock=clock or Clock(),
        )
    taken = arguments(url)
    check_files(taken, shown=shown(url))
    mixin = EmbeddedConnection if url.startswith("unix://") and url.endswith(EMBEDDED) else None
    return single_client(taken | spoken, reply_timeout=reply_timeout, mixin=mixin, key_types=key_types)


def scattered(client: Redis) -> bool:
    """Whether keys with different hash tags may be on different servers."""
    return isinstance(client, ClusterClient)


async def servers(client: Redis) -> Sequence[Redis]:
    """A client of each server that holds a part of the store; closed with ``client``, not before.

    Raises:
        StoreError: see :func:`~poller.redis.errors.translated`; a cluster that cannot be asked.
    """
    if not isinstance(client, ClusterClient):
        return [client]
    with translated(client):
        return await client.nodes.primaries()


_FIRST_PAUSE: Final = 0.05  # seconds between tries; doubles up to
_LONGEST_PAUSE: Final = 1.0


async def until_answered(client: Redis, send: Callable[[], Awaitable[Any]], *, within: timedelta, clock: Clock) -> Any:
    """Send a script that recognises its own repetition until it is answered. Returns the answer.

    Args:
        client: of the server.
        send: sends the script once.
        within: how long to go on sending.
        clock: of this process.

    Raises:
        StoreUnavailable: no answer in this time; the script may or may not have run.
        StoreRefused: the server will say the same again.
    """
    deadline, pause = clock.monotonic() + within.total_seconds(), _FIRST_PAUSE
    while True:
        try:
            with translated(client):
                return await send()
        except StoreUnavailable:
            if clock.monotonic() + pause >= deadline:
                raise
        await clock.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
