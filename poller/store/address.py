"""Where a Redis is: a URL in, the arguments of a connection out, and the form of it that may be shown.

Law: what cannot be used is refused with the reason before anything is connected, and no part of a password is shown.
A URL says where and who, never how: timeouts and retries are this program's, for a commit that is tried again behind
our back is written twice. So only the options listed here are taken from its query.

Several servers behind one URL are :mod:`poller.store.places`'s. Knows nothing of sockets.
"""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import SplitResult, parse_qs, urlsplit

from redis.asyncio.connection import parse_url

from poller.errors import ConfigurationError

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


def arguments(url: str, *, told: str | None = None) -> dict[str, Any]:
    """What a redis-py pool needs to reach ``url``: class, host and port or path, database, credentials, TLS files.

    Args:
        url: of one server.
        told: the URL that refusals name, where this one was made of another.

    Raises:
        ConfigurationError: another scheme, a database that is not a number, an option that is not in ``OPTIONS``, a
            version of RESP that there is not, a unix URL without an absolute path. The message never holds the
            password.
    """
    named = shown(told or url)
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
