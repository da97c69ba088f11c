"""URLs of Redis, Sentinel and Cluster, and the arguments of connections made of them.

::

    redis+sentinel://USER:PASSWORD@HOST:26379,HOST:26379/SERVICE/DB
    redis+cluster://USER:PASSWORD@HOST:7000,HOST:7001

User, password and the options for TLS are those of the data servers, as in a ``redis://`` URL; ``tls=true`` asks for
TLS to every server, Sentinels included. These may have a user and a password of their own: ``sentinel_username``,
``sentinel_password``.

**Invariants**

- A URL that cannot be used is refused with the reason before anything is connected.
- No part of a password is shown.
- Only the listed options are taken from a URL's query: it says where and as which user, never how. Timeouts and retries
  are the program's, because a commit repeated by the client library is written twice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import SplitResult, parse_qs, parse_qsl, quote, urlencode, urlsplit

import msgspec
from redis.asyncio.connection import parse_url

from poller.errors import ConfigurationError
from poller.redis.cluster import Address

KINDS: Final = ("redis", "rediss", "unix")
PROTOCOLS: Final = (2, 3)
OPTIONS: Final = frozenset(
    {
        "db",
        "protocol",
        "username",
        "password",
        "ssl_ca_certs",
        "ssl_ca_path",
        "ssl_certfile",
        "ssl_keyfile",
        "ssl_cert_reqs",
        "ssl_check_hostname",
        "ssl_min_version",
        "ssl_ciphers",
    }
)

_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*", re.IGNORECASE)
_HOSTS: Final = re.compile(r"(?:(?:\[[0-9a-f:.]+\]|[\w.-]+)(?::\d{1,5})?(?:,(?!$)|$))*", re.IGNORECASE)
_DATABASE: Final = re.compile(r"/?\d*")
_END_OF_AUTHORITY: Final = re.compile(r"[/?#]")


def shown(url: str) -> str:
    """The URL without user, password and query: ``redis://db.example:6379/0``, ``unix:///run/redis.sock``.

    What cannot be taken apart with certainty is left out (``redis://…``): a password may hold a stray ``/`` or ``@``.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or not _SCHEME.fullmatch(scheme):
        return "…"
    end = _END_OF_AUTHORITY.search(rest)
    authority, tail = (rest[: end.start()], rest[end.start() :]) if end else (rest, "")
    hosts = authority.rpartition("@")[2]
    if "@" in tail or not _HOSTS.fullmatch(hosts):
        return f"{scheme}://…"
    return f"{scheme}://{hosts}{re.split(r'[?#]', tail, maxsplit=1)[0]}"


def arguments(url: str, *, original: str | None = None) -> dict[str, Any]:
    """A redis-py pool's arguments for ``url``: class, host and port or path, database, credentials, TLS files.

    Args:
        url: of one server.
        original: the URL that refusals name, where this one was made of another.

    Raises:
        ConfigurationError: another scheme, a database that is not a number, an option that is not in ``OPTIONS``, a
            version of RESP that there is not, a unix URL without an absolute path. The message never holds the
            password.
    """
    named = shown(original or url)
    _check_shape(url, named)
    try:
        taken: dict[str, Any] = dict(parse_url(url))
    except ValueError as unreadable:
        raise ConfigurationError(f"redis.url {named}: {_without_value(unreadable)}") from None
    unknown = sorted(parse_qs(urlsplit(url).query).keys() - OPTIONS)
    if unknown:
        raise ConfigurationError(f"redis.url {named}: option {unknown[0]!r} cannot be set in the URL")
    if taken.get("protocol", PROTOCOLS[0]) not in PROTOCOLS:
        raise ConfigurationError(f"redis.url {named}: expected protocol=2 or protocol=3")
    return taken


def _check_shape(url: str, named: str) -> None:
    scheme = url.partition("://")[0].lower()
    if scheme not in KINDS or "://" not in url:
        expected = ", ".join(f"{kind}://" for kind in (*KINDS, "redis+sentinel", "redis+cluster"))
        raise ConfigurationError(f"redis.url {named}: expected one of {expected}")
    try:
        _check_path(scheme, urlsplit(url), named)
    except ValueError:  # urlsplit's own text repeats what it could not read, which may be a password
        raise ConfigurationError(f"redis.url {named}: the address cannot be read") from None


def _check_path(scheme: str, parts: SplitResult, named: str) -> None:
    if scheme == "unix":
        if not parts.path.startswith("/") or parts.hostname:
            raise ConfigurationError("redis.url unix://…: expected an absolute path, as in unix:///run/redis.sock")
        return
    if "@" in parts.path + parts.query + parts.fragment:
        raise ConfigurationError(f"redis.url {named}: write special characters of a password as %XX")
    _ = parts.port  # raises ValueError where it is not a number up to 65535
    if not _DATABASE.fullmatch(parts.path):
        raise ConfigurationError(f"redis.url {named}: expected a database number after the address")


def _without_value(error: ValueError) -> str:
    """redis-py names the option it could not read and not its value; anything else is not repeated."""
    text = str(error)
    return text.rstrip(".") if text.startswith("Invalid value for '") else "the address cannot be read"


SENTINEL: Final = "redis+sentinel"
CLUSTER: Final = "redis+cluster"

_PORTS: Final = {SENTINEL: 26379, CLUSTER: 6379}
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[\w.-]+)(?::(\d{1,5}))?", re.IGNORECASE)
_HIGHEST_PORT: Final = 65535
_TRUTH: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_APART: Final = frozenset({"tls", "sentinel_username", "sentinel_password"})


class StoreAddress(msgspec.Struct, frozen=True):
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


def place_of(url: str, further: Mapping[str, Any]) -> StoreAddress:
    """The parts of a URL of Sentinel or Cluster.

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
    taken = {**_hostless(arguments(one, original=url)), **further}
    if kind == CLUSTER:
        if taken.pop("db", 0):
            raise _refusal(url, "a cluster has no database numbers, leave it out")
        if options.keys() & {"sentinel_username", "sentinel_password"}:
            raise _refusal(url, "a cluster has no Sentinels, leave their user and password out")
        return StoreAddress(hosts, taken)
    own = {name: options[f"sentinel_{name}"] for name in ("username", "password") if f"sentinel_{name}" in options}
    others = {name: value for name, value in taken.items() if name not in {"db", "username", "password"}}
    return StoreAddress(hosts, taken, service, others | own)


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
