"""Profiles of paging: tokens refused or unusual, ends of listings, shifting and circling pages."""

from __future__ import annotations

from hashlib import blake2b
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec
from msgspec import UNSET, Raw

from poller.sandbox.api import DEFAULT_LIMIT, MAX_LIMIT, Respond, SandboxRequest, SandboxResponse, refusal
from poller.sandbox.faults.base import (
    Layer,
    PageEnvelope,
    Profile,
    ProfileKind,
    SandboxScene,
    asking,
    changed,
    encoded,
    is_page,
    layer_of,
    layering,
    of_pages,
    opened,
    page_of,
    parameter,
    sealed,
    unsealed,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from poller.sandbox.history import History


REQUESTS_TO_EXPIRY: Final = 10
PADDING: Final = 64 * 1024
_INJECTED: Final = "\r\nX-Injected: yes"
_ATTRIBUTES: Final = {"pageToken": "page_token", "sinceDeltaToken": "delta_token"}
RESERVED: Final = " +/=&?#%25;,\u00e9"
_EXPIRED: Final = (400, 404, 409, 410, 412)


def _begins_delta(ask: SandboxRequest) -> bool:
    return parameter(ask, "sinceDeltaToken") is not None and parameter(ask, "pageToken") is None


def _has_page_token(ask: SandboxRequest) -> bool:
    return parameter(ask, "pageToken") is not None


def _expiring(
    counts: Callable[[SandboxRequest], bool], *, pages: bool, status: int = 0
) -> Callable[[SandboxScene], Layer]:
    """Tokens given so far expire before each tenth request that counts."""

    def make(scene: SandboxScene) -> Layer:
        seen = 0
        scene.switches.expired_status = status or scene.switches.expired_status

        def call(respond: Respond, history: History, ask: SandboxRequest) -> SandboxResponse:
            nonlocal seen
            if counts(ask):
                seen += 1
                if seen % REQUESTS_TO_EXPIRY == 0:
                    scene.switches.expire(pages=pages)
            return respond(history, ask)

        return layer_of(call)

    return make


def _bound(respond: Respond, history: History, ask: SandboxRequest) -> SandboxResponse:
    """Bind both tokens to the query by its digest; page tokens pass it on."""
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


def _digest(ask: SandboxRequest) -> str:
    asked = sorted(pair for pair in ask.query if pair[0] in ("limit", "fields", "fields[]"))
    return blake2b(msgspec.json.encode(asked), digest_size=4).hexdigest()


def _huge(respond: Respond, history: History, ask: SandboxRequest) -> SandboxResponse:
    _, token = unsealed("huge", parameter(ask, "pageToken")) or ("", parameter(ask, "pageToken"))
    said = respond(history, asking(ask, pageToken=token))
    page = opened(said) if is_page(ask, said) else None
    if page is None or not page.page_token:
        return said
    return page_of(changed(page, page_token=sealed("huge", "x" * PADDING, page.page_token)))


def _ending(suffix: str, *parameters: str) -> Layer:
    """What comes back as these parameters ends with a suffix, and is refused without it."""

    def call(respond: Respond, history: History, ask: SandboxRequest) -> SandboxResponse:
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
    layering("page-token-64k", "page tokens are longer than 64 KiB", layer_of(_huge), ProfileKind.ANSWER),
    layering(
        "page-token-crlf",
        "page tokens end with a line break and a header line",
        _ending(_INJECTED, "pageToken"),
        ProfileKind.ANSWER,
    ),
    layering(
        "delta-token-crlf",
        "delta tokens end with a line break and a header line",
        _ending(_INJECTED, "sinceDeltaToken"),
        ProfileKind.ANSWER,
    ),
    layering(
        "delta-token-64k",
        "delta tokens are longer than 64 KiB",
        _ending("x" * PADDING, "sinceDeltaToken"),
        ProfileKind.ANSWER,
    ),
    layering(
        "token-characters",
        "both tokens end with characters that a URL has to escape, and come back whole or are refused",
        _ending(RESERVED, *_ATTRIBUTES),
    ),
)


def _end_null(_ask: SandboxRequest, page: PageEnvelope) -> PageEnvelope:
    return page if page.page_token else changed(page, page_token=None)


def _end_empty_string(_ask: SandboxRequest, page: PageEnvelope) -> PageEnvelope:
    return page if page.page_token else changed(page, page_token="")


def _end_empty_page(respond: Respond, history: History, ask: SandboxRequest) -> SandboxResponse:
    end = unsealed("end", parameter(ask, "pageToken"))
    if end is not None:
        return page_of(PageEnvelope([], delta_token=end[0]))
    said = respond(history, ask)
    if not is_page(ask, said):
        return said
    page = opened(said)
    return said if page.page_token else page_of(changed(page, page_token=sealed("end", page.delta_token or "")))


def _end_repeats(respond: Respond, history: History, ask: SandboxRequest) -> SandboxResponse:
    token = parameter(ask, "pageToken")
    first = unsealed("first", token)
    if first is not None:
        query = tuple((name, value) for name, value in first[0])
        said = respond(history, SandboxRequest(ask.resource, qualification=ask.qualification, query=query))
    else:
        said = respond(history, ask)
    if not is_page(ask, said):
        return said
    page = opened(said)
    return said if page.page_token else page_of(changed(page, page_token=token or sealed("first", ask.query)))


def _is_first(ask: SandboxRequest) -> bool:
    return parameter(ask, "pageToken") is None


def _is_last(ask: SandboxRequest, page: PageEnvelope) -> bool:
    """Whether the page is the last one, also if it names itself."""
    token = page.page_token
    return not token or token == parameter(ask, "pageToken") or unsealed("first", token) is not None


def _delta_moves(respond: Respond, history: History, ask: SandboxRequest) -> SandboxResponse:
    said = respond(history, ask)
    if not is_page(ask, said):
        return said
    now = opened(respond(history, SandboxRequest(ask.resource, qualification=ask.qualification)))
    return page_of(changed(opened(said), delta_token=now.delta_token))


def _delta_first(ask: SandboxRequest, page: PageEnvelope) -> PageEnvelope:
    return page if _is_first(ask) else changed(page, delta_token=UNSET)


def _delta_last(ask: SandboxRequest, page: PageEnvelope) -> PageEnvelope:
    return page if _is_last(ask, page) else changed(page, delta_token=UNSET)


ENDING_PROFILES: Final = (
    of_pages("end-absent", "the last page has no pageToken (the default)", lambda _ask, page: page),
    of_pages("end-null", "the last page's pageToken is null", _end_null),
    of_pages("end-empty-string", "the last page's pageToken is an empty string", _end_empty_string),
    layering(
        "end-empty-page", "after the last records comes an empty page without pageToken", layer_of(_end_empty_page)
    ),
    layering(
        "end-repeats-last-page",
        "pageToken is never absent: the last page names itself, and comes again as often as asked for",
        layer_of(_end_repeats),
    ),
    of_pages("delta-every-page", "every page has a deltaToken (the default)", lambda _ask, page: page),
    layering("delta-moves", "a page's deltaToken is of the moment of that page", layer_of(_delta_moves)),
    of_pages("delta-first-page", "only a round's first page has a deltaToken", _delta_first),
    of_pages("delta-last-page", "only a round's last page has a deltaToken", _delta_last),
    of_pages(
        "delta-empty-string",
        "every page's deltaToken is an empty string",
        lambda _ask, page: changed(page, delta_token=""),
    ),
    of_pages("delta-none", "no page has a deltaToken", lambda _ask, page: changed(page, delta_token=UNSET)),
)


_EMPTY_IN_A_ROW: Final = 2
_MANY: Final = 1_000_000


def _shifting(respond: Respond, history: History, ask: SandboxRequest) -> SandboxResponse:
    token = parameter(ask, "pageToken")
    sent, offset, delta = unsealed("offset", token) or (None, 0, None)
    first = respond(history, ask if sent is None else _asked(ask, sent))
    if not is_page(ask, first):
        return first
    page = opened(first)
    query = sent or list(ask.query)
    limit = int(parameter(_asked(ask, query), "limit") or DEFAULT_LIMIT)
    records = _whole(respond, history, ask, page)
    records.reverse()
    delta = delta or page.delta_token
    more = offset + limit < len(records)
    following = sealed("offset", query, offset + limit, delta) if more else UNSET
    return page_of(PageEnvelope(records[offset : offset + limit], delta, following))


def _by_offset(respond: Respond, history: History, ask: SandboxRequest) -> SandboxResponse:
    token = parameter(ask, "pageToken")
    sent, offset, delta = unsealed("place", token) or (None, 0, None)
    first = respond(history, ask if sent is None else _asked(ask, sent))
    if not is_page(ask, first):
        return first
    page, query = opened(first), sent or list(ask.query)
    limit = int(parameter(_asked(ask, query), "limit") or DEFAULT_LIMIT)
    records = _whole(respond, history, ask, page)
    delta = delta or page.delta_token
    following = sealed("place", query, offset + limit, delta) if offset + limit < len(records) else UNSET
    return page_of(PageEnvelope(records[offset : offset + limit], delta, following))


def _whole(respond: Respond, history: History, ask: SandboxRequest, page: PageEnvelope) -> list[Raw]:
    """The records of a listing from this page on, latest change last."""
    records = list(page.results)
    while page.page_token:
        further = SandboxRequest(ask.resource, qualification=ask.qualification)
        said = respond(history, asking(further, pageToken=page.page_token, limit=str(MAX_LIMIT)))
        if said.status != HTTPStatus.OK:
            break
        page = opened(said)
        records += page.results
    return records


def _asked(ask: SandboxRequest, query: list[Any]) -> SandboxRequest:
    return SandboxRequest(
        ask.resource, qualification=ask.qualification, query=tuple((name, value) for name, value in query)
    )


def _empty_between(respond: Respond, history: History, ask: SandboxRequest) -> SandboxResponse:
    left, token = unsealed("empty", parameter(ask, "pageToken")) or (0, parameter(ask, "pageToken"))
    said = respond(history, asking(ask, pageToken=token))
    if not is_page(ask, said):
        return said
    page = opened(said)
    if left:
        following = sealed("empty", left - 1, token) if left > 1 else token
        return page_of(changed(page, results=[], page_token=following))
    if page.page_token:
        page = changed(page, page_token=sealed("empty", _EMPTY_IN_A_ROW, page.page_token))
    return page_of(page)


def _circle(respond: Respond, history: History, ask: SandboxRequest) -> SandboxResponse:
    """P1 → A → B → A: later pages name the second one."""
    sent = parameter(ask, "pageToken")
    token, back = unsealed("circle", sent) or (sent, None)
    said = respond(history, asking(ask, pageToken=token))
    if sent is None or not is_page(ask, said):
        return said
    page = opened(said)
    if back is not None:
        return page_of(changed(page, page_token=back))
    return page_of(changed(page, page_token=sealed("circle", page.page_token, sent))) if page.page_token else said


def _same_token(respond: Respond, history: History, ask: SandboxRequest) -> SandboxResponse:
    said, token = respond(history, ask), parameter(ask, "pageToken")
    return page_of(changed(opened(said), page_token=token)) if token and is_page(ask, said) else said


def _endless(respond: Respond, history: History, ask: SandboxRequest) -> SandboxResponse:
    query, number = unsealed("again", parameter(ask, "pageToken")) or (list(ask.query), 0)
    said = respond(history, _asked(ask, query)) if ask.id is None else respond(history, ask)
    return page_of(changed(opened(said), page_token=sealed("again", query, number + 1))) if is_page(ask, said) else said


def _million(respond: Respond, history: History, ask: SandboxRequest) -> SandboxResponse:
    (number,) = unsealed("million", parameter(ask, "pageToken")) or (0,)
    said = respond(history, asking(ask, pageToken=None) if number else ask)
    if not is_page(ask, said):
        return said
    following = sealed("million", number + 1) if number + 1 < _MANY else UNSET
    record = encoded({"id": str(UUID(int=number, version=4)), "number": number})
    return page_of(changed(opened(said), results=[record], page_token=following))


PAGING_PROFILES: Final = (
    layering(
        "shifting-pages",
        "pages by offset, latest change first: a change moves all records behind it on, so that some come twice",
        layer_of(_shifting),
    ),
    layering(
        "offset-pages",
        "pages by offset, latest change last: a change moves all records behind it on, so that some are on no page",
        layer_of(_by_offset),
        ProfileKind.LACK,
    ),
    layering("empty-pages", "two empty pages with more to come between any two pages", layer_of(_empty_between)),
    layering(
        "page-loop", "the third page of a listing names the second as the next", layer_of(_circle), ProfileKind.ANSWER
    ),
    layering(
        "page-same-token", "every page but the first names itself as the next", layer_of(_same_token), ProfileKind.LACK
    ),
    layering(
        "endless-pages",
        "every page names a next one under a new token, with the same records",
        layer_of(_endless),
        ProfileKind.ANSWER,
    ),
    layering(
        "million-pages",
        "every listing has a million pages, each of one made-up record",
        layer_of(_million),
        ProfileKind.ANSWER,
    ),
)
