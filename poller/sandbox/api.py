"""The API as one pure function from request and history to answer.

**Invariants**

- An answer depends on the request and the history only, not on sockets, credentials or time. All that the
  well-behaved API says passes through :func:`answer`; a misbehaving one is a function of the same type around it
  (:data:`Respond`).
- The first request of a round fixes where the round starts, its delta token, page size and fields; a page token
  carries all of them. Parameters repeated with a page token must not contradict it; only ``limit`` may change.
  Unknown parameters are ignored.
- A token has a checksum and says what it is for; any other text is refused. Tokens are self-contained: they do not
  show whether the listing or version that they name exists.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Callable
from enum import Enum
from hashlib import blake2b
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeVar

import msgspec

from poller.sandbox.history import RESOURCES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poller.sandbox.history import History, SandboxResource, Version


DEFAULT_LIMIT = 100
MAX_LIMIT = 5000


class BadParameter(ValueError):
    """A query parameter that the API refuses.

    Attributes:
        code: which rule, in one word, for the error body.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Parameters(msgspec.Struct, frozen=True):
    """The parameters of a list request, well-formed; None or empty: not sent."""

    page_token: str | None
    limit: int | None
    since: int | None
    fields: tuple[str, ...]


def place(
    resource: SandboxResource, qualification: str | None, query: Sequence[tuple[str, str]], latest: int
) -> PageToken:
    """The position of a list request in its round.

    Args:
        resource: the resource listed.
        qualification: the listing's qualification, if it has one.
        query: names and values as sent, decoded.
        latest: the history's version.

    Raises:
        BadParameter: any parameter is malformed, unknown to this listing, or contradicts the page token.
    """
    listing = (resource.name, qualification and qualification.lower())
    parameters = _parameters(resource, listing, query, latest)
    if parameters.page_token is not None:
        return _continued(listing, parameters, latest)
    return PageToken(
        *listing,
        since=parameters.since,
        after=parameters.since or 0,
        delta=latest,
        limit=parameters.limit or DEFAULT_LIMIT,
        fields=parameters.fields,
    )


def _continued(listing: tuple[str, str | None], parameters: Parameters, latest: int) -> PageToken:
    token = _token("pageToken", parameters.page_token or "", PageToken, listing)
    if max(token.after, token.delta) > latest:
        raise BadParameter("invalidPageToken", "pageToken is not of this history")
    if parameters.since not in (None, token.since) or parameters.fields not in ((), token.fields):
        raise BadParameter("invalidPageToken", "pageToken belongs to a query with other parameters")
    return msgspec.structs.replace(token, limit=parameters.limit or token.limit)


def _parameters(
    resource: SandboxResource, listing: tuple[str, str | None], query: Sequence[tuple[str, str]], latest: int
) -> Parameters:
    last = dict(query)
    return Parameters(
        page_token=last.get("pageToken"),
        limit=_limit(last.get("limit")),
        since=_since(resource, listing, last.get("sinceDeltaToken"), latest),
        fields=_fields(resource, [value for name, value in query if name in ("fields", "fields[]")]),
    )


def _limit(text: str | None) -> int | None:
    if text is None:
        return None
    short_enough = len(text) <= len(str(MAX_LIMIT))
    if not (short_enough and text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_LIMIT):
        raise BadParameter("invalidLimit", f"limit must be an integer from 1 to {MAX_LIMIT}")
    return int(text)


def _since(resource: SandboxResource, listing: tuple[str, str | None], text: str | None, latest: int) -> int | None:
    if text is None:
        return None
    if not resource.takes_delta:
        raise BadParameter("unknownParameter", f"{resource.name} has no parameter sinceDeltaToken")
    token = _token("sinceDeltaToken", text, DeltaToken, listing)
    if token.version > latest:
        raise BadParameter("invalidSinceDeltaToken", "sinceDeltaToken is not of this history")
    return token.version


def _fields(resource: SandboxResource, sent: list[str]) -> tuple[str, ...]:
    """Repeated, comma-separated and bracketed names alike, as a sorted set that has the id."""
    if not sent:
        return ()
    names = {name for value in sent for name in value.split(",")}
    unknown = sorted(names - resource.fields)
    if unknown:
        raise BadParameter("unknownField", f"{resource.name} has no field {unknown[0]!r}")
    return tuple(sorted(names | {"id"}))


def _token(parameter: str, text: str, kind: type[Token], listing: tuple[str, str | None]) -> Token:
    code = f"invalid{parameter[0].upper()}{parameter[1:]}"
    try:
        token = decode(text, kind)
    except MalformedToken as error:
        raise BadParameter(code, f"{parameter} is not a token of this API") from error
    if (token.resource, token.qualification) != listing:
        raise BadParameter(code, f"{parameter} belongs to another listing")
    return token


class SandboxRequest(msgspec.Struct, frozen=True):
    """A GET of the API.

    Attributes:
        resource: the resource's name.
        id: the record asked for; None for a list.
        qualification: whose listing; None where the resource has only one.
        query: the query's names and values, decoded, in order.
        if_none_match: the header of that name.
    """

    resource: str
    id: str | None = None
    qualification: str | None = None
    query: tuple[tuple[str, str], ...] = ()
    if_none_match: str | None = None


class WireMode(Enum):
    """How an answer that does not arrive whole is sent."""

    DRIP = "a byte now and then"
    CUT_WITH_LENGTH = "half the body that Content-Length announces, then the end of the connection"
    CUT_WITHOUT_LENGTH = "half the body, then the end of the connection, which is how the body was to end"
    CUT_CHUNKED = "half the body in chunks, then the end of the connection in place of the last chunk"
    ENDLESS = "the body, then white space without end"
    SILENT = "nothing, and the connection stays"
    NOT_HTTP = "something that is not HTTP, then the end of the connection"
    RESET = "no answer: the connection is reset"


class SandboxResponse(msgspec.Struct, frozen=True):
    """A response: status, body, further headers, and how it is sent."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)
    wire: WireMode | None = None


Respond = Callable[["History", SandboxRequest], SandboxResponse]
"""The type of :func:`answer`."""

_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


def answer(history: History, ask: SandboxRequest) -> SandboxResponse:
    """The API's answer: a record or list envelope, or an error body."""
    if ask.id is not None:
        return _single(history, ask.resource, ask.id)
    if ask.qualification is not None and not history.knows_qualification(ask.qualification):
        return refusal(HTTPStatus.NOT_FOUND, "notFound", "no such qualification")
    try:
        at = place(RESOURCES[ask.resource], ask.qualification, ask.query, history.version)
    except BadParameter as error:
        return refusal(HTTPStatus.BAD_REQUEST, error.code, str(error))
    return SandboxResponse(HTTPStatus.OK, _envelope(history, at))


def refusal(status: int, code: str, message: str, headers: tuple[tuple[str, str], ...] = ()) -> SandboxResponse:
    """An answer with the error body ``{"error": {"code", "message"}}``."""
    body = msgspec.json.encode({"error": {"code": code, "message": message}})
    return SandboxResponse(status, body, (("content-type", "application/json"), *headers))


def _single(history: History, resource: str, id_: str) -> SandboxResponse:
    version = history.find(resource, id_)
    if version is None or version.record is None:
        return refusal(HTTPStatus.NOT_FOUND, "notFound", f"no such record in {resource}")
    return SandboxResponse(HTTPStatus.OK, version.record)


def _envelope(history: History, at: PageToken) -> bytes:
    page = history.page(at.resource, at.qualification, after=at.after, limit=at.limit)
    parts = [b'{"results":[', b",".join(_shown(page.rows, at.fields)), b'],"deltaToken":"']
    parts.append(encode(DeltaToken(at.resource, at.qualification, at.delta)).encode())
    if page.more:
        following = msgspec.structs.replace(at, after=page.rows[-1].number)
        parts += [b'","pageToken":"', encode(following).encode()]
    parts.append(b'"}')
    return b"".join(parts)


def _shown(rows: list[Version], fields: tuple[str, ...]) -> list[bytes]:
    """The records' own bytes, untouched if all fields are requested."""
    records = [row.record for row in rows if row.record is not None]
    return [_selected(record, fields) for record in records] if fields else records


def _selected(record: bytes, fields: tuple[str, ...]) -> bytes:
    members = _members.decode(record)
    return msgspec.json.encode({name: value for name, value in members.items() if name in fields})


_CHECKSUM_BYTES = 6


class MalformedToken(ValueError):
    """Not a token of this kind."""


class DeltaToken(msgspec.Struct, frozen=True, array_like=True, tag="delta"):
    """A delta token: the reader has seen everything of a listing up to a version.

    Attributes:
        resource: the resource's name.
        qualification: the listing's qualification in lower case, if it has one.
        version: the history's version when the round began.
    """

    resource: str
    qualification: str | None
    version: int


class PageToken(msgspec.Struct, frozen=True, array_like=True, tag="page"):
    """A page token: a position in a round.

    Attributes:
        resource: the resource's name.
        qualification: the listing's qualification in lower case, if it has one.
        since: the version of the delta token that the round began with; None for a full one.
        after: the number of the last version that the round has shown.
        delta: the version that the round's delta token names, fixed by the first request.
        limit: the most records a page may have.
        fields: the fields asked for, sorted; empty for all.
    """

    resource: str
    qualification: str | None
    since: int | None
    after: int
    delta: int
    limit: int
    fields: tuple[str, ...]


Token = TypeVar("Token", DeltaToken, PageToken)


def encode(token: DeltaToken | PageToken) -> str:
    """The token's text: letters, digits, ``-`` and ``_`` only."""
    content = msgspec.json.encode(token)
    return urlsafe_b64encode(_checksum(content) + content).rstrip(b"=").decode()


def decode(text: str, kind: type[Token]) -> Token:
    """Read a token's text.

    Raises:
        MalformedToken: it was not made by :func:`encode`, or from another kind of token.
    """
    try:
        raw = b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        checksum, content = raw[:_CHECKSUM_BYTES], raw[_CHECKSUM_BYTES:]
        if checksum != _checksum(content):
            raise MalformedToken("wrong checksum")
        return msgspec.json.decode(content, type=kind)
    except (binascii.Error, ValueError, msgspec.MsgspecError) as error:
        raise MalformedToken(str(error)) from error


def _checksum(content: bytes) -> bytes:
    return blake2b(content, digest_size=_CHECKSUM_BYTES).digest()
