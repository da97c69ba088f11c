"""Profiles of how pages follow one another: shifting, empty ones in between, in circles, without end."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from msgspec import UNSET, Raw

from poller.sandbox.answer import Answer, Ask, Respond
from poller.sandbox.layers import (
    Envelope,
    asking,
    changed,
    encoded,
    is_page,
    layer_of,
    opened,
    page_of,
    parameter,
    sealed,
    unsealed,
)
from poller.sandbox.profiles.profile import Kind, layering
from poller.sandbox.reading import DEFAULT_LIMIT, MAX_LIMIT

if TYPE_CHECKING:
    from poller.sandbox.model import History

_EMPTY_IN_A_ROW: Final = 2
_MANY: Final = 1_000_000


def _shifting(respond: Respond, history: History, ask: Ask) -> Answer:
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
    return page_of(Envelope(records[offset : offset + limit], delta, following))


def _by_offset(respond: Respond, history: History, ask: Ask) -> Answer:
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
    return page_of(Envelope(records[offset : offset + limit], delta, following))


def _whole(respond: Respond, history: History, ask: Ask, page: Envelope) -> list[Raw]:
    """The records of a listing from this page on, in the API's order: the latest change last."""
    records = list(page.results)
    while page.page_token:
        further = Ask(ask.resource, qualification=ask.qualification)
        said = respond(history, asking(further, pageToken=page.page_token, limit=str(MAX_LIMIT)))
        if said.status != HTTPStatus.OK:
            break
        page = opened(said)
        records += page.results
    return records


def _asked(ask: Ask, query: list[Any]) -> Ask:
    return Ask(ask.resource, qualification=ask.qualification, query=tuple((name, value) for name, value in query))


def _empty_between(respond: Respond, history: History, ask: Ask) -> Answer:
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


def _circle(respond: Respond, history: History, ask: Ask) -> Answer:
    """P1 → A → B → A: what a page after the second names is the second."""
    sent = parameter(ask, "pageToken")
    token, back = unsealed("circle", sent) or (sent, None)
    said = respond(history, asking(ask, pageToken=token))
    if sent is None or not is_page(ask, said):
        return said
    page = opened(said)
    if back is not None:
        return page_of(changed(page, page_token=back))
    return page_of(changed(page, page_token=sealed("circle", page.page_token, sent))) if page.page_token else said


def _same_token(respond: Respond, history: History, ask: Ask) -> Answer:
    said, token = respond(history, ask), parameter(ask, "pageToken")
    return page_of(changed(opened(said), page_token=token)) if token and is_page(ask, said) else said


def _endless(respond: Respond, history: History, ask: Ask) -> Answer:
    query, number = unsealed("again", parameter(ask, "pageToken")) or (list(ask.query), 0)
    said = respond(history, _asked(ask, query)) if ask.id is None else respond(history, ask)
    return page_of(changed(opened(said), page_token=sealed("again", query, number + 1))) if is_page(ask, said) else said


def _million(respond: Respond, history: History, ask: Ask) -> Answer:
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
        Kind.LACK,
    ),
    layering("empty-pages", "two empty pages with more to come between any two pages", layer_of(_empty_between)),
    layering("page-loop", "the third page of a listing names the second as the next", layer_of(_circle), Kind.ANSWER),
    layering("page-same-token", "every page but the first names itself as the next", layer_of(_same_token), Kind.LACK),
    layering(
        "endless-pages",
        "every page names a next one under a new token, with the same records",
        layer_of(_endless),
        Kind.ANSWER,
    ),
    layering(
        "million-pages",
        "every listing has a million pages, each of one made-up record",
        layer_of(_million),
        Kind.ANSWER,
    ),
)
