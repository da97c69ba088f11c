"""Where the store is when it is more than one server: the URLs of Sentinel and Cluster, taken apart.

::

    redis+sentinel://USER:PASSWORD@HOST:26379,HOST:26379/SERVICE/DB
    redis+cluster://USER:PASSWORD@HOST:7000,HOST:7001

User, password and the options for TLS are those of the data servers, as in a ``redis://`` URL; ``tls=true`` asks for
TLS to every server, Sentinels included. These may have a user and a password of their own: ``sentinel_username``,
``sentinel_password``.

Law: as in :mod:`poller.store.address`. Knows nothing of sockets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit

import msgspec

from poller.errors import ConfigurationError
from poller.store.address import arguments, shown
from poller.store.slots import Address

SENTINEL: Final = "redis+sentinel"
CLUSTER: Final = "redis+cluster"

_PORTS: Final = {SENTINEL: 26379, CLUSTER: 6379}
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[\w.-]+)(?::(\d{1,5}))?", re.IGNORECASE)
_HIGHEST_PORT: Final = 65535
_TRUTH: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_APART: Final = frozenset({"tls", "sentinel_username", "sentinel_password"})


class Place(msgspec.Struct, frozen=True):
    """Several servers.

    Attributes:
        hosts: Sentinels, or some nodes of the cluster.
        arguments: of a connection to a data server, without its host and port.
        service: what the Sentinels call it; empty for a cluster.
        watching: arguments of a connection to a Sentinel, without its host and port.
    """

    hosts: tuple[Address, ...]
    arguments: dict[str, Any]
    service: str = ""
    watching: dict[str, Any] = {}


def kind_of(url: str) -> str:
    """The scheme of a URL, in small letters."""
    return url.partition("://")[0].lower()


def place_of(url: str, further: Mapping[str, Any]) -> Place:
    """Take a URL of Sentinel or Cluster apart.

    Args:
        url: of one of these.
        further: arguments that beat those of the URL, of all connections.

    Raises:
        ConfigurationError: it cannot be used; the message holds no password.
    """
    kind = kind_of(url)
    try:
        parts = urlsplit(url)
        hosts = tuple(_addresses(parts, _PORTS[kind]))
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        tls = _TRUTH[options.get("tls", "false").lower()]
    except (ValueError, KeyError):  # their texts repeat what could not be read, which may be a password
        raise _refusal(url, f"expected {kind}://HOST:PORT,HOST:PORT{_tail(kind)} and tls=true or false") from None
    plain = urlencode([(name, value) for name, value in options.items() if name not in _APART], quote_via=quote)
    login = parts.netloc.rpartition("@")[0]
    service, database = _path(url, kind, parts.path)
    one = f"{'rediss' if tls else 'redis'}://{login}{'@' if login else ''}{hosts[0]}/{database}?{plain}"
    taken = {**_hostless(arguments(one, told=url)), **further}
    if kind == CLUSTER:
        if taken.pop("db", 0):
            raise _refusal(url, "a cluster has no database numbers, leave it out")
        if options.keys() & {"sentinel_username", "sentinel_password"}:
            raise _refusal(url, "a cluster has no Sentinels, leave their user and password out")
        return Place(hosts, taken)
    own = {name: options[f"sentinel_{name}"] for name in ("username", "password") if f"sentinel_{name}" in options}
    others = {name: value for name, value in taken.items() if name not in {"db", "username", "password"}}
    return Place(hosts, taken, service, others | own)


def _addresses(parts: SplitResult, port: int) -> list[Address]:
    found = []
    for text in parts.netloc.rpartition("@")[2].split(","):
        match = _HOST.fullmatch(text)
        if match is None or not 0 < int(match[2] or port) <= _HIGHEST_PORT:
            raise ValueError
        found.append(Address(match[1].strip("[]"), int(match[2] or port)))
    return found


def _path(url: str, kind: str, path: str) -> tuple[str, str]:
    """Service and database."""
    if kind == CLUSTER:
        return "", path.strip("/")
    service, _, database = path.removeprefix("/").partition("/")
    if not service:
        raise _refusal(url, "expected the name of the service, as in redis+sentinel://h:26379/SERVICE/0")
    return service, database


def _hostless(taken: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in taken.items() if name not in {"host", "port"}}


def _tail(kind: str) -> str:
    return "/SERVICE/DB" if kind == SENTINEL else ""


def _refusal(url: str, reason: str) -> ConfigurationError:
    return ConfigurationError(f"redis.url {shown(url)}: {reason}")
