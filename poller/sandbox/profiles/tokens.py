"""Profiles of tokens that are refused or hard to carry: expired, bound to the query, huge, with a line break."""

from __future__ import annotations

from hashlib import blake2b
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import msgspec

from poller.sandbox.answer import Answer, Ask, Respond, refusal
from poller.sandbox.layers import (
    Layer,
    asking,
    changed,
    is_page,
    layer_of,
    opened,
    page_of,
    parameter,
    sealed,
    unsealed,
)
from poller.sandbox.profiles.profile import Kind, Profile, Scene, layering

if TYPE_CHECKING:
    from collections.abc import Callable

    from poller.sandbox.model import History

REQUESTS_TO_EXPIRY: Final = 10
PADDING: Final = 64 * 1024
_INJECTED: Final = "\r\nX-Injected: yes"
_ATTRIBUTES: Final = {"pageToken": "page_token", "sinceDeltaToken": "delta_token"}
RESERVED: Final = " +/=&?#%25;,\u00e9"
_EXPIRED: Final = (400, 404, 409, 410, 412)


def _begins_delta(ask: Ask) -> bool:
    return parameter(ask, "sinceDeltaToken") is not None and parameter(ask, "pageToken") is None


def _has_page_token(ask: Ask) -> bool:
    return parameter(ask, "pageToken") is not None


def _expiring(counts: Callable[[Ask], bool], *, pages: bool, status: int = 0) -> Callable[[Scene], Layer]:
    """At each tenth request that counts, the tokens given so far expire, before it is answered."""

    def make(scene: Scene) -> Layer:
        seen = 0
        scene.switches.expired_status = status or scene.switches.expired_status

        def call(respond: Respond, history: History, ask: Ask) -> Answer:
            nonlocal seen
            if counts(ask):
                seen += 1
                if seen % REQUESTS_TO_EXPIRY == 0:
                    scene.switches.expire(pages=pages)
            return respond(history, ask)

        return layer_of(call)

    return make


def _bound(respond: Respond, history: History, ask: Ask) -> Answer:
    """Both tokens carry the query's digest; a page token hands it on, for it may come alone."""
    since, page_token = parameter(ask, "sinceDeltaToken"), parameter(ask, "pageToken")
    own = _digest(ask)
    since_of, since = unsealed("bound", since) or (own, since)
    digest, page_token = unsealed("bound", page_token) or (own, page_token)
    if since is not None and since_of != digest:
        return refusal(HTTPStatus.BAD_REQUEST, "invalidSinceDeltaToken", "sinceDeltaToken is of another query")
    said = respond(history, asking(ask, sinceDeltaToken=since, pageToken=page_token))
    if not is_page(ask, said):
        return said
    page = opened(said)
    tokens = {name: getattr(page, name) for name in ("delta_token", "page_token")}
    return page_of(changed(page, **{name: sealed("bound", digest, value) for name, value in tokens.items() if value}))


def _digest(ask: Ask) -> str:
    asked = sorted(pair for pair in ask.query if pair[0] in ("limit", "fields", "fields[]"))
    return blake2b(msgspec.json.encode(asked), digest_size=4).hexdigest()


def _huge(respond: Respond, history: History, ask: Ask) -> Answer:
    _, token = unsealed("huge", parameter(ask, "pageToken")) or ("", parameter(ask, "pageToken"))
    said = respond(history, asking(ask, pageToken=token))
    page = opened(said) if is_page(ask, said) else None
    if page is None or not page.page_token:
        return said
    return page_of(changed(page, page_token=sealed("huge", "x" * PADDING, page.page_token)))


def _ending(suffix: str, *parameters: str) -> Layer:
    """What comes back as these parameters ends with a suffix, and is refused without it."""

    def call(respond: Respond, history: History, ask: Ask) -> Answer:
        sent = {name: parameter(ask, name) for name in parameters}
        if not all(token is None or token.endswith(suffix) for token in sent.values()):
            return refusal(HTTPStatus.BAD_REQUEST, "invalidToken", "a token came back as another")
        said = respond(history, asking(ask, **{name: token and token[: -len(suffix)] for name, token in sent.items()}))
        if not is_page(ask, said):
            return said
        page = opened(said)
        tokens = {name: getattr(page, name) for name in map(_ATTRIBUTES.__getitem__, parameters)}
        return page_of(changed(page, **{name: token + suffix for name, token in tokens.items() if token}))

    return layer_of(call)


TOKEN_PROFILES: Final = (
    *(
        Profile(
            f"expire-{status}",
            f"at each tenth request that begins a delta all delta tokens given so far expire; expired is {status}",
            _expiring(_begins_delta, pages=False, status=status),
        )
        for status in _EXPIRED
    ),
    Profile(
        "expire-pages",
        "at each tenth request with a page token all page tokens given so far expire, in mid-round",
        _expiring(_has_page_token, pages=True),
    ),
    layering("token-bound", "a delta token is refused (400) beside another limit or other fields", layer_of(_bound)),
    layering("page-token-64k", "page tokens are longer than 64 KiB", layer_of(_huge), Kind.ANSWER),
    layering(
        "page-token-crlf",
        "page tokens end with a line break and a header line",
        _ending(_INJECTED, "pageToken"),
        Kind.ANSWER,
    ),
    layering(
        "delta-token-crlf",
        "delta tokens end with a line break and a header line",
        _ending(_INJECTED, "sinceDeltaToken"),
        Kind.ANSWER,
    ),
    layering(
        "delta-token-64k",
        "delta tokens are longer than 64 KiB",
        _ending("x" * PADDING, "sinceDeltaToken"),
        Kind.ANSWER,
    ),
    layering(
        "token-characters",
        "both tokens end with characters that a URL has to escape, and come back whole or are refused",
        _ending(RESERVED, *_ATTRIBUTES),
    ),
)
