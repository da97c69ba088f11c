"""URLs, credentials, certificates and extra headers of sources and sinks.

**Invariants**

- A URL in a file has no user and password, and no message shows any part of them.
- ``auth`` has exactly one kind and never the secret itself, only where it is kept. Secrets are read where they are
  used, each time, so that a rotated file counts immediately.
- No header value can begin a header of its own (no CR, no LF), no header that the program sets can be set twice, and
  a credential is not a header but ``auth``. A refusal names the header and never shows its value.
- Pure: nothing is resolved or connected. Whether an address may be reached is the address guard's decision.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, Self
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from pydantic import AfterValidator, ConfigDict, Field, ValidationInfo, WithJsonSchema, field_validator, model_validator

from poller.config.types import FilePath, Flag, Table, Text, Variable
from poller.http.ssrf import misspelling, network_of

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
    split_url(value)
    return value


def check_base_url(value: str) -> str:
    """As :func:`check_url`, without a query, and without trailing slashes.

    Raises:
        ValueError: as there.
    """
    if split_url(value).query or "?" in value:
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
    """A URL of one of ``REDIS_SCHEMES``, as written.

    It may have credentials, because it may come from the environment.

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
    """Whether a Redis URL has a password, before the host or in the query."""
    rest, _, query = url.partition("://")[2].partition("?")
    user_and_password, at, _ = rest.rpartition("@")
    return (bool(at) and ":" in user_and_password) or any(
        name.lower() in {"password", "sentinel_password"} for name, _ in parse_qsl(query, keep_blank_values=True)
    )


def reversed_host(url: str) -> str:
    """The host reversed, such as ``org.example.api``; for localhost and addresses ``poller``."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    labels = host.split(".")
    if host == "localhost" or is_address(host) or re.fullmatch(r"[0-9]+|0x[0-9a-f]*", labels[-1]):
        return "poller"
    return ".".join(reversed(labels))


def same_host(one: str, other: str) -> bool:
    """Whether two URLs have the same scheme, host and port as written.

    False if one of them cannot be read.
    """
    try:
        first, second = urlsplit(one), urlsplit(other)
        return (first.scheme, first.hostname, first.port) == (second.scheme, second.hostname, second.port)
    except ValueError:
        return False


def redacted(text: str) -> str:
    """The text without user, password, query and fragment of a URL in it."""
    scheme, separator, rest = text.partition("://")
    if "@" in text:  # it is unknown where a malformed URL's password ends
        return f"{scheme}://…" if separator and scheme.replace("+", "").isalpha() else "…"
    shown, mark, _ = rest.partition("?") if "?" in rest else rest.partition("#")
    return f"{scheme}://{shown}{mark and mark + '…'}" if separator else text


def host_only(url: str) -> str:
    """Scheme, host and port of a sink, which anyone may see.

    The path is not shown: in chat webhooks it is the secret.
    """
    scheme, separator, rest = redacted(url).partition("://")
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    return f"{scheme}://{host}/…" if separator and rest.removeprefix(host) not in {"", "/"} else redacted(url)


def path_secrets(url: str) -> tuple[str, ...]:
    """Secrets in a sink's path and query, as written and decoded.

    Short parts are no secrets.
    """
    parts = urlsplit(url)
    whole = [one for one in (parts.path, parts.query) if len(one) >= _SECRET_PATH]
    pieces = [one for one in re.split(r"[/&=;:]", f"{parts.path}&{parts.query}") if len(one) >= _SECRET_PIECE]
    return tuple(dict.fromkeys(text for one in (*whole, *pieces) for text in (one, unquote(one))))


def split_url(value: str, schemes: tuple[str, ...] = ("http", "https")) -> SplitResult:
    """The parts of an absolute URL of one of these schemes.

    Raises:
        ValueError: anything else; user, password or a fragment in it; characters outside ASCII.
    """
    try:
        parts = urlsplit(value)
        _ = parts.port
        host = parts.hostname
    except ValueError:  # urlsplit's text repeats what it could not read
        raise ValueError("expected a URL whose host and port can be read") from None
    if parts.scheme not in schemes or not host or re.search(r"[^\x21-\x7e]", value):
        beginnings = " or ".join(f"{scheme}://" for scheme in schemes)
        raise ValueError(f"expected a URL that begins with {beginnings} and a host, in ASCII")
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
    """Whether a host is an IP address, without brackets."""
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


class AuthKind(NamedTuple):
    """What the configuration knows of a kind of ``auth``; the key of its setting is its name.

    Attributes:
        module: of :mod:`poller.auth`, which makes the credential.
        users: who takes it: ``source``, and sinks by their module in :mod:`poller.delivery.sinks`.
        example: how it is written, for messages.
    """

    module: str
    users: frozenset[str]
    example: str


_ALL: Final = frozenset({"source", "webhook", "nats"})
_NATS: Final = frozenset({"nats"})
AUTH_KINDS: Final[Mapping[str, AuthKind]] = {
    "token_file": AuthKind("base", _ALL, '{ token_file = "…" }'),
    "token_env": AuthKind("base", _ALL, '{ token_env = "NAME" }'),
    "oauth2": AuthKind("oauth", _ALL, "{ oauth2 = { … } }"),
    "command": AuthKind("command", _ALL, '{ command = ["…"] }'),
    "user": AuthKind("base", _NATS, '{ user = { name = "…", password_file = "…" } }'),
    "credentials_file": AuthKind("base", _NATS, '{ credentials_file = "…" }'),
    "none": AuthKind("base", _ALL, "{ none = true }"),
}
"""The kinds of ``auth``."""


def auth_kinds_of(user: str) -> frozenset[str]:
    """The kinds that a source or a kind of sink takes."""
    return frozenset(name for name, kind in AUTH_KINDS.items() if user in kind.users)


def _expected_auth() -> str:
    *others, last = (kind.example for kind in AUTH_KINDS.values() if "source" in kind.users)
    return f"expected exactly one of {', '.join(others)} or {last}"


class OAuth2Settings(Table):
    """The client credentials grant (RFC 6749, 4.4)."""

    token_url: Url = Field(description="The token endpoint: an http or https URL.")
    client_id: Text = Field(description="The client's id, as the authorization server knows it.")
    client_secret_file: FilePath = Field(
        description="The file that holds the client's secret; read for each new token."
    )
    scope: Text | None = Field(
        default=None, description="The scope to request, words separated by spaces. Default: none."
    )
    audience: Text | None = Field(
        default=None, description="The audience to request, if the server requires one. Default: none."
    )


class AuthSettings(Table):
    """Where a credential is kept: exactly one of the kinds."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    token_file: FilePath | None = Field(
        default=None, description="The file that holds the bearer token; read again when it changes."
    )
    token_env: Variable | None = Field(
        default=None, description="The name of the environment variable that holds the bearer token."
    )
    oauth2: OAuth2Settings | None = Field(
        default=None,
        description="Tokens from an OAuth 2 server, by the client credentials grant; renewed before they expire.",
    )
    command: Annotated[tuple[Text, ...], Field(min_length=1)] | None = Field(
        default=None, description="A program and its arguments; the first line that it prints is the bearer token."
    )
    none: Flag = Field(default=False, description="true: no credential is sent.")

    @field_validator("none")
    @classmethod
    def _only_true(cls, value: bool) -> bool:  # noqa: FBT001  # pydantic calls it with the value alone
        if not value:
            raise ValueError("expected true; leave none out where there is another kind")
        return value

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if len(self._given()) != 1:
            raise ValueError(_expected_auth())
        return self

    @property
    def kind(self) -> str:
        """The kind."""
        return self._given()[0]

    def _given(self) -> tuple[str, ...]:
        return tuple(kind for kind in AUTH_KINDS if getattr(self, kind, None) not in (None, False))

    @property
    def binding(self) -> str:
        """The kind and the place of the secret, as delta tokens are bound to them.

        Stores hold a digest of this text, and another digest makes every feed of the source resync. So the keys of the
        first version are spelled as it has spelled them, whatever the classes are called today. A key that came later
        stands behind them, and only where it is given.
        """
        return f"AuthSettings({_spelled(self, _BOUND)}){_later(self)}"


_BOUND: Final = ("token_file", "token_env", "oauth2", "command", "none")
_BOUND_OAUTH2: Final = ("token_url", "client_id", "client_secret_file", "scope", "audience")


def _spelled(table: Table, keys: tuple[str, ...]) -> str:
    return ", ".join(f"{key}={_spelled_value(getattr(table, key))}" for key in keys)


def _spelled_value(value: Any) -> str:
    match value:
        case OAuth2Settings():
            return f"OAuth2Settings({_spelled(value, _BOUND_OAUTH2)})"
        case Path():
            return f"PosixPath({value.as_posix()!r})"
    return repr(value)


def _later(auth: AuthSettings) -> str:
    """What is given of the keys that came after the first version; "" for nothing."""
    first: dict[str, Any] = {**dict.fromkeys(_BOUND, True), "oauth2": set(_BOUND_OAUTH2)}
    values = auth.model_dump(mode="json", exclude_defaults=True, exclude=first)
    given = {key: value for key, value in values.items() if value != {}}
    return f" {json.dumps(given, sort_keys=True)}" if given else ""


class UserSettings(Table):
    """A user's name, and where the password is kept."""

    name: Text = Field(description="The name of the user.")
    password_file: FilePath = Field(description="The file that holds the user's password.")


class SinkAuthSettings(AuthSettings):
    """Exactly one of the kinds; the last two are for NATS sinks alone."""

    user: UserSettings | None = Field(
        default=None, description="A user of a NATS server, and the file of its password."
    )
    credentials_file: FilePath | None = Field(
        default=None, description="The credentials file of a user of a NATS server, as nsc writes it."
    )


def no_credential() -> AuthSettings:
    """The default: a public or a local API needs none."""
    return AuthSettings(none=True)


def _with_certificate(key: Path | None, given: ValidationInfo) -> Path | None:
    if key is not None and given.data.get("client_cert_file", key) is None:
        raise ValueError("expected only together with client_cert_file")
    return key


CaFile = Annotated[
    FilePath | None,
    Field(description="CA certificates (PEM) by which the server's certificate is verified. Default: the system's."),
]
ClientCertFile = Annotated[
    FilePath | None,
    Field(description="The client's certificate (PEM), if the server asks for one. Default: none."),
]
ClientKeyFile = Annotated[
    FilePath | None,
    Field(description="The key of client_cert_file (PEM). Default: it is in that file, too."),
    AfterValidator(_with_certificate),
]


CREDENTIALS: Final = frozenset({"authorization", "proxy-authorization", "cookie"})
OWN: Final = frozenset(
    {"connection", "content-encoding", "content-length", "content-type", "expect", "host", "keep-alive"}
    | {"proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
)

_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_VALUE: Final = re.compile(r"[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?|")
_LONGEST: Final = 8192


def check_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """The headers, as given.

    Raises:
        ValueError: a name that is no HTTP token or is given twice (in any case), a value that is no HTTP field value,
            a credential, a header that the program sets itself.
    """
    seen: set[str] = set()
    for name, value in headers.items():
        _check_name(name, seen)
        if len(value) > _LONGEST or not _VALUE.fullmatch(value):
            raise ValueError(f"expected a value of {name} without line breaks, control characters or spaces around it")
        seen.add(name.lower())
    return headers


def check_sink_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """As :func:`check_headers`, and none that belongs to CloudEvents or to Standard Webhooks.

    Raises:
        ValueError: as there.
    """
    check_headers(headers)
    for name in headers:
        if name.lower().startswith(("ce-", "webhook-")):
            raise ValueError(f"expected no {name}: the delivery sets it")
    return headers


def _check_name(name: str, seen: set[str]) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError("expected header names of letters, digits and hyphens")
    if name.lower() in seen:
        raise ValueError(f"expected {name} once; upper and lower case do not differ")
    if name.lower() in CREDENTIALS:
        raise ValueError(f"expected no {name}: a credential goes into auth, by file, environment or command")
    if name.lower() in OWN:
        raise ValueError(f"expected no {name}: the program sets it")


Headers = Annotated[Mapping[str, str], AfterValidator(check_headers), Field(repr=False)]
SinkHeaders = Annotated[Mapping[str, str], AfterValidator(check_sink_headers), Field(repr=False)]
