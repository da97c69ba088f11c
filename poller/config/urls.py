"""URLs as configured: checked, trimmed, and made fit to be shown.

Law: user and password have no place in a URL that a file holds, and no message shows any part of them.

Pure: nothing is resolved, nothing is connected. Whether an address may be reached is the address guard's question.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Annotated, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from pydantic import AfterValidator, WithJsonSchema

from poller.http.addresses import network_of
from poller.http.hosts import misspelling

REDIS_SCHEMES: Final = ("redis", "rediss", "unix", "redis+sentinel", "redis+cluster")

_EXPECTED_REDIS: Final = (
    "expected redis://HOST:PORT/DB, rediss://…, unix:///PATH, redis+sentinel://H:PORT,H2:PORT/SERVICE/DB "
    "or redis+cluster://H:PORT,H2:PORT"
)
_SECRET_PATH: Final = 8  # characters
_SECRET_PIECE: Final = 16
_HOST_AND_PORT: Final = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")


def check_url(value: str) -> str:
    """An absolute http or https URL, as written.

    Raises:
        ValueError: anything else; user, password or a fragment in it; characters outside ASCII.
    """
    _split(value)
    return value


def check_base_url(value: str) -> str:
    """As :func:`check_url`, without a query, and with trailing slashes trimmed.

    Raises:
        ValueError: as there.
    """
    if _split(value).query or "?" in value:
        raise ValueError("expected a URL without a query")
    return value.rstrip("/")


def check_proxy(value: str) -> str:
    """As :func:`check_base_url`, and nothing after host and port.

    Raises:
        ValueError: as there.
    """
    checked = check_base_url(value)
    if urlsplit(checked).path:
        raise ValueError("expected http:// or https://, a host and a port, and nothing after them")
    return checked


def check_redis_url(value: str) -> str:
    """A URL of one of ``REDIS_SCHEMES``, as written; credentials may be in it, for it may come from the environment.

    Raises:
        ValueError: another scheme, no host, a port out of range, no path of a socket, no Sentinel service.
    """
    scheme, separator, rest = value.partition("://")
    if not separator or scheme not in REDIS_SCHEMES or re.search(r"[\x00-\x20\x7f]", value):
        raise ValueError(_EXPECTED_REDIS)
    where, _, _ = rest.partition("?")
    authority, _, path = where.rpartition("@")[2].partition("/")
    if scheme == "unix":
        if authority or not path:
            raise ValueError("expected an absolute path, as in unix:///run/redis.sock")
        return value
    hosts = authority.split(",") if "+" in scheme else [authority]
    if not all(_is_host(host) for host in hosts):
        raise ValueError(_EXPECTED_REDIS)
    if scheme == "redis+sentinel" and not path.partition("/")[0]:
        raise ValueError("expected the name of the service, as in redis+sentinel://h:26379/SERVICE/0")
    return value


def check_host_or_network(value: str) -> str:
    """A DNS name, an IP address or a network in CIDR notation, as written.

    Raises:
        ValueError: anything else; a network whose address has bits beyond its prefix.
    """
    if network_of(value) is None and (value.startswith("[") or misspelling(value)):
        raise ValueError('expected a host name, an IP address or a network such as "10.1.0.0/16"')
    return value


def holds_password(url: str) -> bool:
    """Whether a Redis URL brings a password along, before the host or in the query."""
    rest, _, query = url.partition("://")[2].partition("?")
    user_and_password, at, _ = rest.rpartition("@")
    return (bool(at) and ":" in user_and_password) or any(
        name.lower() in {"password", "sentinel_password"} for name, _ in parse_qsl(query, keep_blank_values=True)
    )


def reversed_host(url: str) -> str:
    """The host backwards, as in ``org.example.api``; for localhost and addresses ``poller``."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    labels = host.split(".")
    if host == "localhost" or is_address(host) or re.fullmatch(r"[0-9]+|0x[0-9a-f]*", labels[-1]):
        return "poller"
    return ".".join(reversed(labels))


def same_host(one: str, other: str) -> bool:
    """Whether two URLs have the same scheme, host and port, as they are written; False where one cannot be read."""
    try:
        first, second = urlsplit(one), urlsplit(other)
        return (first.scheme, first.hostname, first.port) == (second.scheme, second.hostname, second.port)
    except ValueError:
        return False


def redacted(text: str) -> str:
    """Text as it may be shown: without user, password, query and fragment of a URL in it."""
    scheme, separator, rest = text.partition("://")
    if "@" in text:  # where exactly a malformed URL's password ends, nobody knows
        return f"{scheme}://…" if separator and scheme.replace("+", "").isalpha() else "…"
    shown, mark, _ = rest.partition("?") if "?" in rest else rest.partition("#")
    return f"{scheme}://{shown}{mark and mark + '…'}" if separator else text


def host_only(url: str) -> str:
    """A sink as it may be shown to everybody: scheme, host and port, for in chat webhooks the path is the secret."""
    scheme, separator, rest = redacted(url).partition("://")
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    return f"{scheme}://{host}/…" if separator and rest.removeprefix(host) not in {"", "/"} else redacted(url)


def path_secrets(url: str) -> tuple[str, ...]:
    """What of a sink's path and query nobody is to repeat, as it is written and decoded; short parts are no secrets."""
    parts = urlsplit(url)
    whole = [one for one in (parts.path, parts.query) if len(one) >= _SECRET_PATH]
    pieces = [one for one in re.split(r"[/&=;:]", f"{parts.path}&{parts.query}") if len(one) >= _SECRET_PIECE]
    return tuple(dict.fromkeys(text for one in (*whole, *pieces) for text in (one, unquote(one))))


def _split(value: str) -> SplitResult:
    try:
        parts = urlsplit(value)
        _ = parts.port
        host = parts.hostname
    except ValueError:  # urlsplit's text repeats what it could not read
        raise ValueError("expected a URL whose host and port can be read") from None
    if parts.scheme not in {"http", "https"} or not host or re.search(r"[^\x21-\x7e]", value):
        raise ValueError("expected a URL that begins with http:// or https:// and a host, in ASCII")
    if "@" in parts.netloc:
        raise ValueError("expected a URL without user and password: a credential goes into auth")
    if "#" in value:
        raise ValueError("expected a URL without a fragment (#…)")
    if parts.port == 0 or not _is_host(parts.netloc.removesuffix(":")):
        raise ValueError("expected a URL whose host and port can be read")
    return parts


def _is_host(authority: str) -> bool:
    match = _HOST_AND_PORT.fullmatch(authority)
    return match is not None and (match[1] is None or 1 <= int(match[1]) <= 65535)  # noqa: PLR2004  # the largest port


def is_address(host: str) -> bool:
    """Whether a host is spelled as an IP address, without brackets."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


_AS_URL: Final = {"type": "string", "format": "uri", "pattern": "^https?://[^@#]+$"}
_AS_REDIS: Final = {"type": "string", "pattern": r"^(rediss?|unix|redis\+sentinel|redis\+cluster)://"}
_AS_HOST: Final = {"type": "string", "pattern": "^[0-9A-Za-z._:-]+(/[0-9]+)?$"}

Url = Annotated[str, AfterValidator(check_url), WithJsonSchema(_AS_URL)]
BaseUrl = Annotated[str, AfterValidator(check_base_url), WithJsonSchema(_AS_URL | {"pattern": "^https?://[^@#?]+$"})]
ProxyUrl = Annotated[str, AfterValidator(check_proxy), WithJsonSchema(_AS_URL | {"pattern": "^https?://[^@#?/]+/?$"})]
HostOrNetwork = Annotated[str, AfterValidator(check_host_or_network), WithJsonSchema(_AS_HOST)]
RedisUrl = Annotated[str, AfterValidator(check_redis_url), WithJsonSchema(_AS_REDIS)]
