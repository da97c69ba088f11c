"""What a list request asks for: its query parameters, checked, as one place in a round.

Law: the first request of a round fixes where the round begins, its delta token, its page size and its fields; a page
token carries all of them. Parameters sent again beside a page token may repeat the round's, never contradict it; only
``limit`` may change. Parameters that are not known are ignored.

It does not know: the records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from poller.sandbox.tokens import DeltaToken, NonsenseToken, PageToken, Token, decode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from poller.sandbox.resources import Resource

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
    """The known query parameters of a list request, well-formed; None (of fields: empty) where not sent."""

    page_token: str | None
    limit: int | None
    since: int | None
    fields: tuple[str, ...]


def place(resource: Resource, qualification: str | None, query: Sequence[tuple[str, str]], latest: int) -> PageToken:
    """Where in which round a list request stands.

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
    resource: Resource, listing: tuple[str, str | None], query: Sequence[tuple[str, str]], latest: int
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


def _since(resource: Resource, listing: tuple[str, str | None], text: str | None, latest: int) -> int | None:
    if text is None:
        return None
    if not resource.takes_delta:
        raise BadParameter("unknownParameter", f"{resource.name} has no parameter sinceDeltaToken")
    token = _token("sinceDeltaToken", text, DeltaToken, listing)
    if token.version > latest:
        raise BadParameter("invalidSinceDeltaToken", "sinceDeltaToken is not of this history")
    return token.version


def _fields(resource: Resource, sent: list[str]) -> tuple[str, ...]:
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
    except NonsenseToken as error:
        raise BadParameter(code, f"{parameter} is not a token of this API") from error
    if (token.resource, token.qualification) != listing:
        raise BadParameter(code, f"{parameter} belongs to another listing")
    return token
