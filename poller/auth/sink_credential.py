"""A sink credential from a request, as in the CloudEvents Subscriptions API (0.1-wip).

Two kinds exist. An access token is sent as it is, even after its expiry, because only the sink decides; a name and a
secret are sent as ``Basic`` (RFC 7617). Tokens are not refreshed: a refresh token is a credential for a server other
than the sink. The client that sent the token sends the next one.

**Invariants**

* The resulting value is fit for a header.
* No ``repr`` shows any part of it. An error names the key and what is expected, never the value.
* Pure: this module does not know where the credential is stored.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal

import msgspec

from poller.errors import ConfigurationError

LONGEST: Final = 8192
"""Bytes of each part."""

TOKEN: Final = "expected printable ASCII without spaces, 1 to 8192 characters"  # noqa: S105 -- words about one
NAMES: Final = 8
"""The shortest name that is treated as a secret: longer names may be keys, shorter ones are words."""

KIND: Final = "expected ACCESSTOKEN or PLAIN"
NOT_REFRESHED: Final = f"{KIND}: tokens are not refreshed here; send the next access token with a request"
EXPECTED: Final[Mapping[str, str]] = {
    "accesstoken": TOKEN,
    "accesstokenexpiresutc": "expected a moment with its offset (RFC 3339), such as 2026-03-02T08:15:00Z",
    "accesstokentype": "expected Bearer",
    "identifier": "expected text without colons and control characters, 1 to 8192 bytes",
    "secret": "expected text without control characters, 8192 bytes at most",
}
UNKNOWN: Final = "expected no other keys than those of its credentialtype"

_FIT: Final = {
    "accesstoken": re.compile(r"[!-~]+"),
    "identifier": re.compile(r"[^\x00-\x1f\x7f-\x9f:]+"),
    "secret": re.compile(r"[^\x00-\x1f\x7f-\x9f]*"),
}
_Token = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST, extra_json_schema={"pattern": "^[!-~]+$"})]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST)]
_Secret = Annotated[str, msgspec.Meta(max_length=LONGEST)]


class _Silent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="credentialtype"):
    def __post_init__(self) -> None:
        for key, fit in _FIT.items():
            value = getattr(self, key, "-")
            if not fit.fullmatch(value) or len(value.encode()) > LONGEST:
                raise ValueError(f"{key}: {EXPECTED[key]}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []


class AccessTokenCredential(_Silent, frozen=True, tag="ACCESSTOKEN"):
    """An access token.

    Attributes:
        accesstoken: the token.
        accesstokenexpiresutc: its expiry; None: unknown.
        accesstokentype: of OAuth 2.
    """

    accesstoken: _Token
    accesstokenexpiresutc: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    accesstokentype: Literal["Bearer", "bearer"] = "Bearer"


class PlainCredential(_Silent, frozen=True, tag="PLAIN"):
    """A name and a secret.

    Attributes:
        identifier: the name, without a colon.
        secret: the password.
    """

    identifier: _Name
    secret: _Secret


SinkCredentialValue = AccessTokenCredential | PlainCredential

_KINDS: Final[Mapping[Any, type[SinkCredentialValue]]] = {
    "ACCESSTOKEN": AccessTokenCredential,
    "PLAIN": PlainCredential,
}


class Authorization(msgspec.Struct, frozen=True):
    """The Authorization header for a sink.

    Attributes:
        value: of the header.
        secrets: must not appear in messages, even if the sink repeats them.
        expires: the expiry of a token; None: unknown.
    """

    value: str
    secrets: tuple[str, ...]
    expires: datetime | None = None

    def __repr__(self) -> str:
        return "Authorization(…)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []

    def remark(self, now: datetime) -> str:
        """A remark for the error when a sink refuses the header at this time (UTC); "": none."""
        if self.expires is None or now < self.expires:
            return ""
        return f"the access token expired at {self.expires.isoformat(timespec='seconds').replace('+00:00', 'Z')}"


def brought_of(given: Mapping[str, Any]) -> SinkCredentialValue | dict[str, str]:
    """The credential of a request, or its errors: by key ("": the whole), what is expected."""
    kind = _kind(given)
    if kind is None:
        refreshed = given.get("credentialtype") == "REFRESHTOKEN"
        return {"credentialtype": NOT_REFRESHED if refreshed else KIND}
    fields = msgspec.structs.fields(kind)
    wrong = {one.name: EXPECTED[one.name] for one in fields if not _usable(one, given)}
    if given.keys() - {one.name for one in fields} - {"credentialtype"}:
        wrong[""] = UNKNOWN
    return wrong or msgspec.convert(given, kind)


def written(one: SinkCredentialValue) -> bytes:
    """The stored form, JSON."""
    return msgspec.json.encode(one)


def kind_of(kept: bytes) -> str:
    """The credentialtype of a stored credential; "?": this version cannot use it."""
    try:
        return str(read_credential(kept).__struct_config__.tag)
    except ConfigurationError:
        return "?"


def authorization_of(kept: bytes) -> Authorization:
    """What the credential is sent as.

    Raises:
        ConfigurationError: this version cannot use what is kept.
    """
    match read_credential(kept):
        case PlainCredential(name, secret):
            joined = b64encode(f"{name}:{secret}".encode()).decode()
            return Authorization(f"Basic {joined}", (joined, secret, name if len(name) >= NAMES else ""))
        case AccessTokenCredential(token, expires):
            return Authorization(f"Bearer {token}", (token,), expires)


def _kind(given: Mapping[str, Any]) -> type[SinkCredentialValue] | None:
    named = given.get("credentialtype")
    return _KINDS.get(named) if isinstance(named, str) else None


def _usable(field: Any, given: Mapping[str, Any]) -> bool:
    if field.name not in given:
        return not field.required
    try:
        value = msgspec.convert(given[field.name], field.type)
    except msgspec.ValidationError:
        return False
    fit = _FIT.get(field.name)
    return fit is None or bool(fit.fullmatch(value) and len(value.encode()) <= LONGEST)


def read_credential(kept: bytes) -> SinkCredentialValue:
    """The credential as it was kept.

    Raises:
        ConfigurationError: this version cannot use what is kept.
    """
    try:
        found: SinkCredentialValue = msgspec.json.decode(kept, type=SinkCredentialValue)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ConfigurationError("the stored credential cannot be used by this version: send it again") from None
    return found
