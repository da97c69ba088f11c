"""Clients of Redis for the consumer, made from a URL or from the directory of an embedded server.

**Invariants**

- A command is sent once: redis-py would repeat one whose reply was lost, and entries that it read would be stuck.
- A client returns bytes and speaks RESP2, whatever the URL says.
- No message holds a password.
"""

from __future__ import annotations

import os
import sys
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from redis.asyncio import Redis, Sentinel
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as Disconnected
from redis.maint_notifications import MaintNotificationsConfig

REPLY_TIMEOUT: Final = timedelta(seconds=5)
_CONNECT_TIMEOUT: Final = timedelta(seconds=2)
_SOCKET: Final = "valkey.sock"
_SINGLE: Final = ("redis", "rediss", "unix")
_SENTINEL: Final = "redis+sentinel"
_CLUSTER: Final = "redis+cluster"
_EXPECTED: Final = "expected redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://"
_PORTS: Final = {_SENTINEL: 26379, _CLUSTER: 6379}
_FIXED: Final = frozenset({"decode_responses", "protocol", "encoding"})
"""Options of a URL that do not change what the consumer does."""


class PrimaryClient(Redis):
    """A client of the primary behind Sentinels."""

    async def aclose(self, close_connection_pool: bool | None = None) -> None:  # noqa: FBT001 -- as redis-py has it
        """Close the connections to the primary, and those to the Sentinels, which redis-py leaves open."""
        manager: Any = self.connection_pool
        async with AsyncExitStack() as closing:
            for sentinel in manager.sentinel_manager.sentinels:
                closing.push_async_callback(sentinel.aclose)
            await super().aclose(close_connection_pool)


class ConsumerClusterClient(RedisCluster):
    """A client of a cluster."""

    async def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        """Send a command to the server that has its key.

        A failover closes all connections, also one that another task is about to use.

        Raises:
            redis.exceptions.RedisError: see redis-py.
        """
        try:
            return await super().execute_command(*args, **kwargs)
        except AttributeError as error:
            raise Disconnected(f"the connection was closed before the command was sent ({error})") from error


def embedded_url(data_dir: str | os.PathLike[str] | None = None) -> str:
    """The URL of the embedded server's socket.

    Args:
        data_dir: the server's ``embedded.data_dir``; None: ``$POLLER_DATA_DIR``, else the platform's default.
    """
    directory = Path(data_dir or os.environ.get("POLLER_DATA_DIR") or state_directory()).absolute()
    socket = directory / _SOCKET
    if not socket.exists() and (directory / "private" / _SOCKET).exists():
        socket = directory / "private" / _SOCKET
    return f"unix://{quote(str(socket))}"


def state_directory() -> Path:
    """The directory in which the daemon keeps its embedded server's data by default."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "poller"
    state = os.environ.get("XDG_STATE_HOME", "").strip()
    return Path(state or Path.home() / ".local" / "state") / "poller"


def is_cluster(url: str) -> bool:
    """Whether feeds may be on different servers."""
    return url.partition("://")[0].lower() == _CLUSTER


def connect(url: str, *, reply_timeout: timedelta = REPLY_TIMEOUT) -> Any:
    """A client; it connects with its first command. Close it with ``aclose()``.

    Args:
        url: of one server, of Sentinels (``redis+sentinel://H:26379,H2:26379/SERVICE/DB``) or of a cluster
            (``redis+cluster://H:7000,H2:7001``), as in the configuration of the daemon.
        reply_timeout: how long to wait for a reply.

    Raises:
        ValueError: the URL cannot be used.
    """
    kind = url.partition("://")[0].lower()
    if kind not in {*_SINGLE, *_PORTS} or "://" not in url:
        raise ValueError(f"url: {_EXPECTED}")
    options = _options(reply_timeout)
    if kind in _SINGLE:
        return Redis(connection_pool=None, **_arguments(url), **options)
    hosts, one, own = _several(url, kind)
    if kind == _CLUSTER:
        nodes = [ClusterNode(host, port) for host, port in hosts]
        return ConsumerClusterClient(startup_nodes=nodes, **one, **{**options, "retry": Retry(NoBackoff(), 1)})
    service = one.pop("service")
    watching = {name: value for name, value in one.items() if name not in {"db", "username", "password"}} | own
    timeouts = {"socket_timeout": 0.5, "socket_connect_timeout": 0.5}
    made: Any = Sentinel  # redis-py leaves it untyped
    sentinels = made(hosts, sentinel_kwargs={**options, **watching, **timeouts})
    return sentinels.master_for(service, redis_class=PrimaryClient, **one, **options)


def _options(reply_timeout: timedelta) -> dict[str, Any]:
    return {
        "client_name": "poller-client",
        "decode_responses": False,
        "driver_info": None,  # two commands for each connection, which a user with few permissions may not send
        "health_check_interval": 0,
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
        "socket_connect_timeout": _CONNECT_TIMEOUT.total_seconds(),
        "socket_timeout": reply_timeout.total_seconds(),
    }


def _arguments(url: str) -> dict[str, Any]:
    """What a URL of one server says, without what is fixed here."""
    try:
        taken: dict[str, Any] = dict(parse_url(url))
    except ValueError:  # its text may repeat a password
        raise ValueError(f"url: the address cannot be read; {_EXPECTED}") from None
    kind = taken.pop("connection_class", None)
    if url.lower().startswith("rediss://"):
        taken["ssl"] = True
    elif kind is not None:
        taken["unix_socket_path"] = taken.pop("path", None)
    return {name: value for name, value in taken.items() if name not in _FIXED}


def _several(url: str, kind: str) -> tuple[list[tuple[str, int]], dict[str, Any], dict[str, Any]]:
    """Hosts; arguments of a data server; user and password of the Sentinels."""
    try:
        parts = urlsplit(url)
        login, _, netloc = parts.netloc.rpartition("@")
        hosts = [_host(one, _PORTS[kind]) for one in netloc.split(",")]
    except ValueError:
        raise ValueError(f"url: the address cannot be read; {_EXPECTED}") from None
    given = dict(parse_qsl(parts.query))
    tls = given.pop("tls", "false").lower() in {"true", "yes", "1"}
    names = {"sentinel_username": "username", "sentinel_password": "password"}
    own = {names[name]: given.pop(name) for name in names if name in given}
    service, _, database = parts.path.strip("/").partition("/")
    if kind == _CLUSTER:
        service, database = "", ""
    elif not service:
        raise ValueError("url: expected the name of the service, as in redis+sentinel://h:26379/SERVICE/0")
    scheme, user = "rediss" if tls else "redis", f"{login}@" if login else ""
    one = _arguments(f"{scheme}://{user}host:1/{database}?{urlencode(given, quote_via=quote)}")
    one = {name: value for name, value in one.items() if name not in {"host", "port"}}
    return hosts, one | ({"service": service} if service else {}), own


def _host(text: str, port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise ValueError
    return parts.hostname, parts.port or port
