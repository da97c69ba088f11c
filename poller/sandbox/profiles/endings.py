"""Profiles of the envelope's two tokens: how the last page is told, and which pages have a delta token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import UNSET

from poller.sandbox.answer import Answer, Ask, Respond
from poller.sandbox.layers import (
    Envelope,
    changed,
    is_page,
    layer_of,
    opened,
    page_of,
    parameter,
    sealed,
    unsealed,
)
from poller.sandbox.profiles.profile import layering, of_pages

if TYPE_CHECKING:
    from poller.sandbox.model import History


def _end_null(_ask: Ask, page: Envelope) -> Envelope:
    return page if page.page_token else changed(page, page_token=None)


def _end_empty_string(_ask: Ask, page: Envelope) -> Envelope:
    return page if page.page_token else changed(page, page_token="")


def _end_empty_page(respond: Respond, history: History, ask: Ask) -> Answer:
    end = unsealed("end", parameter(ask, "pageToken"))
    if end is not None:
        return page_of(Envelope([], delta_token=end[0]))
    said = respond(history, ask)
    if not is_page(ask, said):
        return said
    page = opened(said)
    return said if page.page_token else page_of(changed(page, page_token=sealed("end", page.delta_token or "")))


def _end_repeats(respond: Respond, history: History, ask: Ask) -> Answer:
    token = parameter(ask, "pageToken")
    first = unsealed("first", token)
    if first is not None:
        query = tuple((name, value) for name, value in first[0])
        said = respond(history, Ask(ask.resource, qualification=ask.qualification, query=query))
    else:
        said = respond(history, ask)
    if not is_page(ask, said):
        return said
    page = opened(said)
    return said if page.page_token else page_of(changed(page, page_token=token or sealed("first", ask.query)))


def _is_first(ask: Ask) -> bool:
    return parameter(ask, "pageToken") is None


def _is_last(ask: Ask, page: Envelope) -> bool:
    """Also where the end is told by repetition: the page that names itself."""
    token = page.page_token
    return not token or token == parameter(ask, "pageToken") or unsealed("first", token) is not None


def _delta_moves(respond: Respond, history: History, ask: Ask) -> Answer:
    said = respond(history, ask)
    if not is_page(ask, said):
        return said
    now = opened(respond(history, Ask(ask.resource, qualification=ask.qualification)))
    return page_of(changed(opened(said), delta_token=now.delta_token))


def _delta_first(ask: Ask, page: Envelope) -> Envelope:
    return page if _is_first(ask) else changed(page, delta_token=UNSET)


def _delta_last(ask: Ask, page: Envelope) -> Envelope:
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
