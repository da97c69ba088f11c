"""Layers around the API's answers, profiles made of them, and switches.

**Invariants**

- A layer sees the request and the answer, and may change either. An edit of pages sees only pages: an answer that is
  no list envelope of status 200 passes through it untouched.
- The line that describes a profile is the whole truth; a test shows each over a socket. A profile has no state: what
  has to be remembered between requests is in the layer that it makes for each sandbox.
- Until something is switched the answers are untouched. A token knows in which age it was given: an expiry starts a
  new age, and tokens of earlier ages are refused.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from poller.sandbox.api import Respond, SandboxRequest, SandboxResponse, refusal
from poller.sandbox.history import History

if TYPE_CHECKING:
    from collections.abc import Iterable


class Switches:
    """The state of the switches.

    Attributes:
        token: the bearer token required now.
        token_changes: how often it was changed.
        expired_status: what an expired token is answered with.
        delta_age: the age in which delta tokens are given, from 0.
        page_age: the same of page tokens.
        blank: whether every listing is empty.
        profiles: whether the profiles and faults that were chosen apply.
        forgotten: resource and lower-case id of records that no listing shows.
    """

    __slots__ = ("blank", "delta_age", "expired_status", "forgotten", "page_age", "profiles", "token", "token_changes")

    def __init__(self, token: str) -> None:
        self.token = token
        self.token_changes = 0
        self.expired_status: int = HTTPStatus.GONE
        self.delta_age = 0
        self.page_age = 0
        self.blank = False
        self.profiles = True
        self.forgotten: set[tuple[str, str]] = set()

    @property
    def thrown(self) -> bool:
        """Whether any switch changes answers."""
        return bool(self.delta_age or self.page_age or self.blank or self.forgotten)

    def change_token(self, value: str) -> None:
        """Require another bearer token from now on."""
        self.token = value
        self.token_changes += 1

    def expire(self, *, pages: bool) -> None:
        """Refuse all page tokens given so far, or all delta tokens."""
        if pages:
            self.page_age += 1
        else:
            self.delta_age += 1

    def forget(self, resource: str, id_: str, *, on: bool) -> None:
        """Leave a record out of listings, or show it again."""
        key = (resource, id_.lower())
        if on:
            self.forgotten.add(key)
        else:
            self.forgotten.discard(key)


def switched(switches: Switches) -> Layer:
    """The layer that does what the switches say."""

    def layer(respond: Respond) -> Respond:
        slow = stacked((_leaving_out(switches), _delta_tokens(switches), _page_tokens(switches)), respond)

        def call(history: History, ask: SandboxRequest) -> SandboxResponse:
            return slow(history, ask) if switches.thrown else respond(history, ask)

        return call

    return layer


def _leaving_out(switches: Switches) -> Layer:
    def edit(_history: History, ask: SandboxRequest, page: PageEnvelope) -> PageEnvelope:
        if switches.blank:
            return changed(page, results=[], page_token=UNSET)
        if not switches.forgotten:
            return page
        kept = [record for record in page.results if (ask.resource, id_of(record)) not in switches.forgotten]
        return changed(page, results=kept)

    return on_pages(edit)


def _delta_tokens(switches: Switches) -> Layer:
    def layer(respond: Respond) -> Respond:
        def call(history: History, ask: SandboxRequest) -> SandboxResponse:
            age, token = _aged("delta", parameter(ask, "sinceDeltaToken"))
            # Beside a page token the delta token was honoured already, when the round began.
            fresh = token is None or parameter(ask, "pageToken") is not None or age == switches.delta_age
            if not fresh:
                return _expired(switches, "sinceDeltaToken")
            said = respond(history, asking(ask, sinceDeltaToken=token))
            return _given(ask, said, lambda page: _dated(page, "delta", "delta_token", switches.delta_age))

        return call

    return layer


def _page_tokens(switches: Switches) -> Layer:
    def layer(respond: Respond) -> Respond:
        def call(history: History, ask: SandboxRequest) -> SandboxResponse:
            age, token = _aged("page", parameter(ask, "pageToken"))
            if token is not None and age != switches.page_age:
                return _expired(switches, "pageToken")
            said = respond(history, asking(ask, pageToken=token))
            return _given(ask, said, lambda page: _dated(page, "page", "page_token", switches.page_age))

        return call

    return layer


def _aged(kind: str, token: str | None) -> tuple[int, str | None]:
    age, bare = unsealed(kind, token) or (0, token)
    return age, bare


def _dated(page: PageEnvelope, kind: str, name: str, age: int) -> PageEnvelope:
    token = getattr(page, name)
    return changed(page, **{name: sealed(kind, age, token)}) if token and age else page


def _given(ask: SandboxRequest, said: SandboxResponse, edit: Callable[[PageEnvelope], PageEnvelope]) -> SandboxResponse:
    return page_of(edit(opened(said))) if is_page(ask, said) else said


def _expired(switches: Switches, name: str) -> SandboxResponse:
    return refusal(switches.expired_status, "tokenExpired", f"{name} has expired")


Layer = Callable[[Respond], Respond]
"""A function that makes one way to answer of another."""

Token = str | UnsetType | None
"""A token in an envelope: a string, null, or absent."""


class PageEnvelope(msgspec.Struct, frozen=True, rename="camel"):
    """A page: its records' bytes and its tokens."""

    results: list[msgspec.Raw]
    delta_token: Token = UNSET
    page_token: Token = UNSET


class _Identity(msgspec.Struct):
    id: str


_envelope = msgspec.json.Decoder(PageEnvelope)
_identity = msgspec.json.Decoder(_Identity)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


def is_page(ask: SandboxRequest, said: SandboxResponse) -> bool:
    """Whether this is a page of a list."""
    return ask.id is None and said.status == HTTPStatus.OK


def opened(said: SandboxResponse) -> PageEnvelope:
    """The envelope of a page."""
    return _envelope.decode(said.body)


def page_of(envelope: PageEnvelope) -> SandboxResponse:
    """The answer with this envelope."""
    return SandboxResponse(HTTPStatus.OK, msgspec.json.encode(envelope))


def id_of(record: bytes) -> str:
    """A record's id, in lower case."""
    return _identity.decode(record).id.lower()


def members(record: bytes) -> dict[str, msgspec.Raw]:
    """A record's members, their values' bytes untouched."""
    return _members.decode(record)


def encoded(value: object) -> msgspec.Raw:
    """A value as JSON that can stand in :attr:`PageEnvelope.results` or as a member."""
    return msgspec.Raw(msgspec.json.encode(value))


def on_asks(edit: Callable[[SandboxRequest], SandboxRequest | SandboxResponse]) -> Layer:
    """A layer that changes the request, or answers it without asking the API."""

    def layer(respond: Respond) -> Respond:
        def call(history: History, ask: SandboxRequest) -> SandboxResponse:
            edited = edit(ask)
            return edited if isinstance(edited, SandboxResponse) else respond(history, edited)

        return call

    return layer


def on_answers(edit: Callable[[SandboxRequest, SandboxResponse], SandboxResponse]) -> Layer:
    """A layer that changes the answer."""
    return lambda respond: lambda history, ask: edit(ask, respond(history, ask))


def on_pages(edit: Callable[[History, SandboxRequest, PageEnvelope], PageEnvelope]) -> Layer:
    """A layer that changes each page of a list."""

    def layer(respond: Respond) -> Respond:
        def call(history: History, ask: SandboxRequest) -> SandboxResponse:
            said = respond(history, ask)
            return page_of(edit(history, ask, opened(said))) if is_page(ask, said) else said

        return call

    return layer


def layer_of(call: Callable[[Respond, History, SandboxRequest], SandboxResponse]) -> Layer:
    """The layer that answers with a function of what lies within it and the request."""
    return lambda respond: lambda history, ask: call(respond, history, ask)


def stacked(layers: Iterable[Layer], respond: Respond) -> Respond:
    """The way to answer through these layers, the first of them innermost."""
    for layer in layers:
        respond = layer(respond)
    return respond


def parameter(ask: SandboxRequest, name: str) -> str | None:
    """A query parameter's value; the last one if it was sent several times."""
    return dict(ask.query).get(name)


def asking(ask: SandboxRequest, **values: str | None) -> SandboxRequest:
    """The request with these query parameters replaced; None removes one."""
    kept = [(name, value) for name, value in ask.query if name not in values]
    added = [(name, value) for name, value in values.items() if value is not None]
    return msgspec.structs.replace(ask, query=(*kept, *added))


def changed(envelope: PageEnvelope, **values: Any) -> PageEnvelope:
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
        return None  # not a token of this API, which will refuse it


class ProfileKind(StrEnum):
    """What a reader can make of a profile.

    Attributes:
        DIALECT: another way to say the same: all that there is can be read.
        ANSWER: unusable answers: nothing in them counts.
        RECORD: records that no API should send, among good ones.
        MANNERS: an API that is busy, or refuses requests.
        LACK: listings that lack records without saying so.
        STALE: outdated answers among current ones.
    """

    DIALECT = "dialect"
    ANSWER = "bad answer"
    RECORD = "bad record"
    MANNERS = "manners"
    LACK = "lack"
    STALE = "stale"


class SandboxScene(msgspec.Struct, frozen=True):
    """The sandbox of a layer: its switches and its clock (UTC)."""

    switches: Switches
    now: Callable[[], datetime]


class Profile(msgspec.Struct, frozen=True):
    """A profile.

    Attributes:
        name: lower-case words with hyphens.
        does: what a client of the API sees, in one line.
        make: makes the layer for one sandbox.
        kind: what a client can do with it.
    """

    name: str
    does: str
    make: Callable[[SandboxScene], Layer]
    kind: ProfileKind = ProfileKind.DIALECT


def layering(name: str, does: str, layer: Layer, kind: ProfileKind = ProfileKind.DIALECT) -> Profile:
    """A profile whose layer needs nothing of the sandbox and remembers nothing."""
    return Profile(name, does, lambda _scene: layer, kind)


def of_asks(
    name: str,
    does: str,
    edit: Callable[[SandboxRequest], SandboxRequest | SandboxResponse],
    kind: ProfileKind = ProfileKind.DIALECT,
) -> Profile:
    """A profile that changes or answers requests."""
    return layering(name, does, on_asks(edit), kind)


def of_answers(
    name: str, does: str, edit: Callable[[SandboxResponse], SandboxResponse], kind: ProfileKind = ProfileKind.DIALECT
) -> Profile:
    """A profile that changes answers, of lists and of single records alike."""
    return layering(name, does, on_answers(lambda _ask, said: edit(said)), kind)


def of_pages(
    name: str,
    does: str,
    edit: Callable[[SandboxRequest, PageEnvelope], PageEnvelope],
    kind: ProfileKind = ProfileKind.DIALECT,
) -> Profile:
    """A profile that changes the pages of lists."""
    return layering(name, does, on_pages(lambda _history, ask, page: edit(ask, page)), kind)
