"""Functions around the API's answers: what a misbehaving API is made of.

Law: a layer sees what was asked and what was answered, and may change either. An edit of pages sees only pages: an
answer that is no list envelope of status 200 passes through it untouched.

It does not know: which misbehaviours there are.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from poller.sandbox.answer import Answer, Ask, Respond
from poller.sandbox.model import History

if TYPE_CHECKING:
    from collections.abc import Iterable

Layer = Callable[[Respond], Respond]
"""Makes one way to answer out of another."""

Token = str | UnsetType | None
"""A token in an envelope: a string, null, or absent."""


class Envelope(msgspec.Struct, frozen=True, rename="camel"):
    """A page: its records' bytes and its tokens."""

    results: list[msgspec.Raw]
    delta_token: Token = UNSET
    page_token: Token = UNSET


class _Identity(msgspec.Struct):
    id: str


_envelope = msgspec.json.Decoder(Envelope)
_identity = msgspec.json.Decoder(_Identity)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


def is_page(ask: Ask, said: Answer) -> bool:
    """Whether this is a page of a list."""
    return ask.id is None and said.status == HTTPStatus.OK


def opened(said: Answer) -> Envelope:
    """The envelope of a page."""
    return _envelope.decode(said.body)


def page_of(envelope: Envelope) -> Answer:
    """The answer with this envelope."""
    return Answer(HTTPStatus.OK, msgspec.json.encode(envelope))


def id_of(record: bytes) -> str:
    """A record's id, in lower case."""
    return _identity.decode(record).id.lower()


def members(record: bytes) -> dict[str, msgspec.Raw]:
    """A record's members, their values' bytes untouched."""
    return _members.decode(record)


def encoded(value: object) -> msgspec.Raw:
    """A value as JSON that can stand in :attr:`Envelope.results` or as a member."""
    return msgspec.Raw(msgspec.json.encode(value))


def on_asks(edit: Callable[[Ask], Ask | Answer]) -> Layer:
    """Ask something else, or answer without asking."""

    def layer(respond: Respond) -> Respond:
        def call(history: History, ask: Ask) -> Answer:
            edited = edit(ask)
            return edited if isinstance(edited, Answer) else respond(history, edited)

        return call

    return layer


def on_answers(edit: Callable[[Ask, Answer], Answer]) -> Layer:
    """Answer something else."""
    return lambda respond: lambda history, ask: edit(ask, respond(history, ask))


def on_pages(edit: Callable[[History, Ask, Envelope], Envelope]) -> Layer:
    """Change each page of a list."""

    def layer(respond: Respond) -> Respond:
        def call(history: History, ask: Ask) -> Answer:
            said = respond(history, ask)
            return page_of(edit(history, ask, opened(said))) if is_page(ask, said) else said

        return call

    return layer


def layer_of(call: Callable[[Respond, History, Ask], Answer]) -> Layer:
    """The layer that answers with a function of what lies within it and the request."""
    return lambda respond: lambda history, ask: call(respond, history, ask)


def stacked(layers: Iterable[Layer], respond: Respond) -> Respond:
    """The way to answer within these layers, the first of them innermost."""
    for layer in layers:
        respond = layer(respond)
    return respond


def parameter(ask: Ask, name: str) -> str | None:
    """A query parameter's value; the last one if it was sent several times."""
    return dict(ask.query).get(name)


def asking(ask: Ask, **values: str | None) -> Ask:
    """The same request with these query parameters instead of what it had of that name; None leaves it out."""
    kept = [(name, value) for name, value in ask.query if name not in values]
    added = [(name, value) for name, value in values.items() if value is not None]
    return msgspec.structs.replace(ask, query=(*kept, *added))


def changed(envelope: Envelope, **values: Any) -> Envelope:
    """The same page with these attributes."""
    return msgspec.structs.replace(envelope, **values)


def sealed(kind: str, *content: Any) -> str:
    """A token of a layer's own, which :func:`unsealed` reads again: printable, opaque, without state."""
    return f"~{kind}.{urlsafe_b64encode(msgspec.json.encode(content)).decode().rstrip('=')}"


def unsealed(kind: str, token: str | None) -> list[Any] | None:
    """What :func:`sealed` put into a token of this kind; None for any other token."""
    if token is None or not token.startswith(f"~{kind}."):
        return None
    text = token.partition(".")[2]
    try:
        return msgspec.json.decode(urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=list[Any])
    except (binascii.Error, ValueError):
        return None  # somebody made it up; the API itself will refuse it
