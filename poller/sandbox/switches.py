"""What can be switched while the sandbox is served: profiles, tokens that expire, listings that go blank, records.

Law: until something is switched the answers are untouched and cost nothing more. A token remembers in which age it was
given: an expiry begins a new age, and the tokens of the ages before it are refused.

It does not know: the calls under ``/_sandbox`` that throw the switches.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING

from msgspec import UNSET

from poller.sandbox.answer import Answer, Ask, Respond, refusal
from poller.sandbox.layers import (
    Envelope,
    Layer,
    asking,
    changed,
    id_of,
    is_page,
    on_pages,
    opened,
    page_of,
    parameter,
    sealed,
    stacked,
    unsealed,
)

if TYPE_CHECKING:
    from poller.sandbox.model import History


class Switches:
    """The state of the switches.

    Attributes:
        token: the bearer token asked for now.
        token_changes: how often it was changed.
        expired_status: what an expired token is answered with.
        delta_age: which age delta tokens are given in, from 0.
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
        """Whether any of them changes answers."""
        return bool(self.delta_age or self.page_age or self.blank or self.forgotten)

    def change_token(self, value: str) -> None:
        """Ask for another bearer token from now on."""
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

        def call(history: History, ask: Ask) -> Answer:
            return slow(history, ask) if switches.thrown else respond(history, ask)

        return call

    return layer


def _leaving_out(switches: Switches) -> Layer:
    def edit(_history: History, ask: Ask, page: Envelope) -> Envelope:
        if switches.blank:
            return changed(page, results=[], page_token=UNSET)
        if not switches.forgotten:
            return page
        kept = [record for record in page.results if (ask.resource, id_of(record)) not in switches.forgotten]
        return changed(page, results=kept)

    return on_pages(edit)


def _delta_tokens(switches: Switches) -> Layer:
    def layer(respond: Respond) -> Respond:
        def call(history: History, ask: Ask) -> Answer:
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
        def call(history: History, ask: Ask) -> Answer:
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


def _dated(page: Envelope, kind: str, name: str, age: int) -> Envelope:
    token = getattr(page, name)
    return changed(page, **{name: sealed(kind, age, token)}) if token and age else page


def _given(ask: Ask, said: Answer, edit: Callable[[Envelope], Envelope]) -> Answer:
    return page_of(edit(opened(said))) if is_page(ask, said) else said


def _expired(switches: Switches, name: str) -> Answer:
    return refusal(switches.expired_status, "tokenExpired", f"{name} has expired")
