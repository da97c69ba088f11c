"""The API itself: one pure function from what was asked and the history to the answer.

Law: an answer depends on the request and the history and on nothing else. All that the well-behaved API says passes
through :func:`answer`, so a misbehaving one is a function of the same type around it (:data:`Respond`).

It does not know: sockets, credentials (the server checks them before it asks), time.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec

from poller.sandbox.reading import BadParameter, place
from poller.sandbox.resources import RESOURCES
from poller.sandbox.tokens import DeltaToken, PageToken, encode

if TYPE_CHECKING:
    from poller.sandbox.model import History, Version


class Ask(msgspec.Struct, frozen=True):
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


class Wire(Enum):
    """How an answer that does not arrive whole is sent."""

    DRIP = "a byte now and then"
    CUT_WITH_LENGTH = "half the body that Content-Length announces, then the end of the connection"
    CUT_WITHOUT_LENGTH = "half the body, then the end of the connection, which is how the body was to end"
    CUT_CHUNKED = "half the body in chunks, then the end of the connection in place of the last chunk"
    ENDLESS = "the body, then white space without end"
    SILENT = "nothing, and the connection stays"
    NOT_HTTP = "something that is not HTTP, then the end of the connection"
    RESET = "no answer: the connection is reset"


class Answer(msgspec.Struct, frozen=True):
    """A response: status, body, the headers beyond its length and date, and how it is sent if not as a whole."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = (("content-type", "application/json"),)
    wire: Wire | None = None


Respond = Callable[["History", Ask], Answer]
"""The type of :func:`answer`."""

_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


def answer(history: History, ask: Ask) -> Answer:
    """What the API says: 200 with a record or a list envelope, 400 or 404 with an error body."""
    if ask.id is not None:
        return _single(history, ask.resource, ask.id)
    if ask.qualification is not None and not history.knows_qualification(ask.qualification):
        return refusal(HTTPStatus.NOT_FOUND, "notFound", "no such qualification")
    try:
        at = place(RESOURCES[ask.resource], ask.qualification, ask.query, history.version)
    except BadParameter as error:
        return refusal(HTTPStatus.BAD_REQUEST, error.code, str(error))
    return Answer(HTTPStatus.OK, _envelope(history, at))


def refusal(status: int, code: str, message: str, headers: tuple[tuple[str, str], ...] = ()) -> Answer:
    """An answer with the error body ``{"error": {"code", "message"}}``."""
    body = msgspec.json.encode({"error": {"code": code, "message": message}})
    return Answer(status, body, (("content-type", "application/json"), *headers))


def _single(history: History, resource: str, id_: str) -> Answer:
    version = history.find(resource, id_)
    if version is None or version.record is None:
        return refusal(HTTPStatus.NOT_FOUND, "notFound", f"no such record in {resource}")
    return Answer(HTTPStatus.OK, version.record)


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
    """The records' own bytes, untouched where all fields are wanted: this is what makes pages cheap."""
    records = [row.record for row in rows if row.record is not None]
    return [_selected(record, fields) for record in records] if fields else records


def _selected(record: bytes, fields: tuple[str, ...]) -> bytes:
    members = _members.decode(record)
    return msgspec.json.encode({name: value for name, value in members.items() if name in fields})
