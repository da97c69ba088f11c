"""Laws of :mod:`poller.source.paging`."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

from poller.errors import SourceNonsense
from poller.source.envelope import Page, decode_page
from poller.source.paging import Drain, Params, Query


def page(page_token: str | None = None, delta_token: str | None = None) -> Page:
    return Page([], delta_token, page_token)


@pytest.mark.parametrize(
    "end", [b'{"results":[]}', b'{"results":[],"pageToken":null}', b'{"results":[],"pageToken":""}']
)
def test_a_page_without_a_page_token_is_the_last(end: bytes) -> None:
    """Absent, null and empty end the listing; how many records a page holds never does."""
    drain = Drain(Query())
    assert drain.take(page("p")) == (("pageToken", "p"),)
    assert drain.take(decode_page(end)) is None
    assert drain.pages == 2


@pytest.mark.parametrize(
    ("keep", "tokens", "kept"),
    [
        ("first", ["a", "b", "c"], "a"),
        ("last", ["a", "b", "c"], "c"),
        ("first", [None, "b", None, "d"], "b"),
        ("last", [None, "b", None], "b"),
        ("first", [None, None], None),
        ("last", [None], None),
    ],
)
def test_the_first_or_the_last_delta_token_is_kept(
    keep: Literal["first", "last"], tokens: list[str | None], kept: str | None
) -> None:
    """Of the tokens that are there, the one that the configuration says; none where there was none."""
    drain = Drain(Query(keep=keep))
    for number, token in enumerate(tokens):
        drain.take(page(f"p{number}", token))
    assert drain.delta_token == kept


@pytest.mark.parametrize(
    ("style", "fields"),
    [
        ("repeat", (("fields", "id"), ("fields", "name"))),
        ("comma", (("fields", "id,name"),)),
        ("brackets", (("fields[]", "id"), ("fields[]", "name"))),
    ],
)
def test_fields_are_written_in_the_style_asked_for(
    style: Literal["repeat", "comma", "brackets"], fields: Params
) -> None:
    """The reference does not say how an array stands in a query string, so the configuration does."""
    query = Query(limit=5, fields=("id", "name"), style=style)
    assert query.first(None) == (("limit", "5"), *fields)
    assert query.first("d") == (("limit", "5"), *fields, ("sinceDeltaToken", "d"))


def test_further_pages_repeat_the_parameters_or_not() -> None:
    """With ``all`` a further page is asked for like the first, and by its token; with ``token-only`` by that alone."""
    repeating, alone = Query(limit=5, fields=("id",)), Query(limit=5, fields=("id",), page_params="token-only")
    assert repeating.further("d", "p") == (*repeating.first("d"), ("pageToken", "p"))
    assert alone.first("d") == repeating.first("d")
    assert alone.further("d", "p") == (("pageToken", "p"),)
    assert Query().first(None) == ()
    assert Drain(alone, "d").start() == alone.first("d")


def test_a_circle_is_an_error() -> None:
    """A page token that comes a second time leads nowhere, however many pages lie between."""
    drain = Drain(Query())
    for token in ("a", "b", "c"):
        drain.take(page(token))
    with pytest.raises(SourceNonsense, match="circle"):
        drain.take(page("a"))


def test_a_listing_has_an_end() -> None:
    """As many pages as allowed are fine; if the last of them names a further one, that is an error."""
    fine, endless = Drain(Query(max_pages=3)), Drain(Query(max_pages=3))
    for drain in (fine, endless):
        assert drain.take(page("a")) is not None
        assert drain.take(page("b")) is not None
    assert fine.take(page()) is None
    with pytest.raises(SourceNonsense, match="max_pages"):
        endless.take(page("c"))


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"limit": 6}, True),
        ({"limit": None}, True),
        ({"fields": ("id",)}, True),
        ({"fields": ()}, True),
        ({"fields": ("name", "id")}, True),
        ({"page_params": "token-only"}, False),
        ({"keep": "last"}, False),
        ({"max_pages": 7}, False),
    ],
)
def test_the_fingerprint_is_of_what_a_token_may_be_bound_to(change: dict[str, Any], differs: bool) -> None:
    """Limit, fields and path change it; how this side goes about reading does not."""
    query = Query(limit=5, fields=("id", "name"))
    other = msgspec.structs.replace(query, **change)
    assert (other.fingerprint("/a") != query.fingerprint("/a")) == differs
    assert query.fingerprint("/b") != query.fingerprint("/a") == Query(limit=5, fields=("id", "name")).fingerprint("/a")


def test_a_last_page_that_repeats_itself_ends_the_listing() -> None:
    """An API that never leaves the token out: the same records under the token they were asked with are the end."""
    drain = Drain(Query())
    assert drain.take(Page([b"1"], None, "a")) is not None
    assert drain.take(Page([b"2"], None, "a")) == (("pageToken", "a"),)
    assert drain.take(Page([b"2"], None, "a")) is None
    unsteady = Drain(Query())
    unsteady.take(Page([b"1"], None, "a"))
    unsteady.take(Page([b"2"], None, "a"))
    with pytest.raises(SourceNonsense, match="circle"):
        unsteady.take(Page([b"3"], None, "a"))


def test_the_same_records_under_a_new_token_are_a_circle() -> None:
    """New tokens for ever and nothing new in the pages; several empty ones in a row are allowed."""
    drain = Drain(Query())
    assert drain.take(Page([b"1"], None, "a")) is not None
    for token in ("b", "c", "d"):
        assert drain.take(Page([], None, token)) is not None
    with pytest.raises(SourceNonsense, match="repeats the records"):
        drain.take(Page([b"1"], None, "e"))
