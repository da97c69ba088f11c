"""Laws of :mod:`poller.source.paging`: detected capabilities, page and delta tokens, and reading of pages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import aclosing
from itertools import pairwise
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poller.changes.records import Record, Rejected
from poller.errors import SourceNonsense, SourceRefused, SourceUnavailable
from poller.lifecycle import at_once
from poller.source.feed import RoundMode
from poller.source.paging import (
    SLICE_BYTES,
    SLICE_RECORDS,
    DetectedCapabilities,
    ListingReader,
    ListQuery,
    Page,
    Params,
    accepted_query,
    capabilities_of,
    decode_page,
    read_pages,
    slices,
)
from poller.source.round import run_round
from tests.source.round_sides import ACHIEVEMENTS, FEED, MemoryStore, WallClock, records

LIMITS = st.none() | st.integers(1, 5_000)
FIELDS = st.sampled_from([(), ("id", "n")])


@given(LIMITS, FIELDS, st.integers(0, 3_000), st.booleans(), st.booleans())
async def test_the_nearest_query_that_is_taken_is_found(
    limit: int | None, fields: tuple[str, ...], most: int, takes_fields: bool, takes_all: bool
) -> None:
    """The query found has all accepted parameters and at least half of the accepted limit, in few requests."""
    asked: list[ListQuery] = []

    async def takes(query: ListQuery) -> bool:
        asked.append(query)
        return takes_all and (query.limit or 0) <= most and (takes_fields or not query.fields)

    query = ListQuery(limit=limit, fields=fields)
    if await takes(query):
        return
    found = await accepted_query(query, takes)
    assert len(asked) < 20
    if not takes_all or (limit is None and not fields):
        assert found is None
        return
    assert found is not None
    assert found.fields == (fields if takes_fields else ())
    if limit is None or limit <= most:
        assert found.limit == limit
    elif most:
        assert found.limit is not None
        assert most / 2 < found.limit + 1 <= most + 1
    else:
        assert found.limit is None


def test_what_was_learnt_is_applied_kept_and_bound_to_its_query() -> None:
    """Detected capabilities are stored and used for their query only."""
    asked = ListQuery(limit=500, fields=("id", "n"))
    learnt = DetectedCapabilities("q").refusing(asked, ListQuery(limit=125))
    assert learnt.refused == ("limit (taken: 125)", "fields")
    assert learnt.applied(asked) == ListQuery(limit=125)
    kept = capabilities_of(msgspec.json.encode(learnt).decode())
    assert kept.about("q") == learnt
    assert kept.about("another") == DetectedCapabilities("another")
    assert DetectedCapabilities("q").refusing(asked, ListQuery(fields=asked.fields)).applied(asked) == ListQuery(
        fields=asked.fields
    )
    assert (
        capabilities_of(None)
        == capabilities_of("{broken")
        == capabilities_of('{"limit":"many"}')
        == DetectedCapabilities()
    )


@pytest.mark.parametrize(
    ("tokens", "place"),
    [
        ("ttt", "every page"),
        ("t--", "the first page"),
        ("--t", "the last page"),
        ("-t-", "some pages"),
        ("tt-", "some pages"),
        ("---", "none"),
    ],
)
def test_where_the_delta_token_stands_is_seen(tokens: str, place: str) -> None:
    """The place of the delta token is detected from a listing of several pages; one page changes nothing."""
    drain = ListingReader(ListQuery())
    for number, stands in enumerate(tokens, start=1):
        more = str(number) if number < len(tokens) else None
        drain.next_request(Page(str(number).encode(), "d" if stands == "t" else None, more, "pageToken empty"))
    learnt = DetectedCapabilities().seeing(drain)
    assert (learnt.delta_token, learnt.paging) == (place, "pageToken empty")
    single = ListingReader(ListQuery())
    single.next_request(Page(b"1", "d", None))
    assert learnt.seeing(single) == learnt
    assert DetectedCapabilities().seeing(single).paging == "no pageToken"


class Picky:
    """An API that accepts limits up to a number, and fields or not."""

    def __init__(self, *, most: int, fields: bool = False, status: int = 400) -> None:
        self.most, self.fields, self.status = most, fields, status
        self.away = False
        self.asked: list[dict[str, str]] = []

    async def get(self, path: str, params: Params) -> bytes:
        asked = dict(params)
        self.asked.append(asked)
        if self.away and "limit" not in asked:
            raise SourceUnavailable("away")
        if int(asked.get("limit", 0)) > self.most or ("fields" in asked and not self.fields):
            raise SourceRefused(f"GET {path}: no", status=self.status)
        return msgspec.json.encode({"results": records(path), "deltaToken": "d"})


async def rounds(api: Picky, store: MemoryStore, *, achievements: bool = False, **changed: Any) -> Any:
    feed = msgspec.structs.replace(ACHIEVEMENTS if achievements else FEED, **changed)

    async def none(since: int) -> dict[str, int]:
        assert not since
        return {}

    api.asked.clear()
    return await run_round(feed, store, api.get, clock=WallClock(), qualifications=none)


ASKED = ListQuery(limit=1_000, fields=("id", "n"))


@pytest.mark.parametrize("status", [400, 413, 414, 422])
async def test_a_limit_that_is_too_large_is_halved_and_remembered(status: int) -> None:
    """A refused limit is halved until it is accepted; later rounds use that limit with their token."""
    api, store = Picky(most=300, fields=True, status=status), MemoryStore()
    result = await rounds(api, store, query=ASKED)
    assert (result.ok, result.mode, result.created) == (True, RoundMode.BASELINE, 1)
    assert result.learnt.refused == ("limit (taken: 250)",)
    again = await rounds(api, store, query=ASKED)
    assert (again.ok, again.mode, again.learnt) == (True, RoundMode.DELTA, None)
    assert api.asked == [{"limit": "250", "fields": "n", "sinceDeltaToken": "d"}]


async def test_what_was_learnt_is_forgotten_by_a_resync_and_with_another_query() -> None:
    """A resync or another query tries the configured parameters again."""
    api, store = Picky(most=300), MemoryStore()
    assert (await rounds(api, store, query=ASKED)).learnt.refused == ("limit (taken: 250)", "fields")
    api.most, api.fields = 5_000, True
    assert (await rounds(api, store, query=ASKED)).ok
    assert "fields" not in api.asked[0]
    store.mark("resync", "1")
    result = await rounds(api, store, query=ASKED)
    assert (result.mode, result.ok, result.learnt.refused, len(api.asked)) == (RoundMode.RESYNC, True, (), 1)
    api.most = 10
    result = await rounds(api, store, query=ListQuery(limit=40))
    assert (result.mode, result.ok, result.learnt.refused) == (RoundMode.RESYNC, True, ("limit (taken: 10)",))
    assert len(store.events) == 1


async def test_a_refusal_for_another_reason_is_an_error_and_teaches_nothing() -> None:
    """If the bare request is refused too, the first error is the round's and nothing is detected."""
    api, store = Picky(most=-1, fields=True), MemoryStore()
    result = await rounds(api, store, query=ListQuery(limit=10))
    assert (result.ok, result.error, result.learnt) == (False, "GET /contractTypes: no", None)
    assert len(api.asked) == 2


@pytest.mark.parametrize("query", [ASKED, ListQuery(fields=("id", "n")), ListQuery(limit=1_000)])
async def test_a_refusal_that_passes_leaves_no_parameter_out(query: ListQuery) -> None:
    """A single refusal takes nothing from the query: without ``fields``, whole records would be published."""
    api, store = Picky(most=5_000, fields=True), MemoryStore()

    async def get(path: str, params: Params) -> bytes:
        if not api.asked:
            api.asked.append(dict(params))
            raise SourceRefused(f"GET {path}: no", status=400)
        return await api.get(path, params)

    async def none(_: int) -> dict[str, int]:
        return {}

    feed = msgspec.structs.replace(FEED, query=query)
    result = await run_round(feed, store, get, clock=WallClock(), qualifications=none)
    assert (result.ok, result.created, result.learnt and result.learnt.refused) == (True, 1, ())
    assert api.asked[-1] == api.asked[0]


async def test_an_api_that_goes_away_during_the_search_fails_the_round() -> None:
    """An API that fails during the search fails the round, and no parameter counts as refused."""
    api, store = Picky(most=300), MemoryStore()
    api.away = True
    result = await rounds(api, store, query=ASKED)
    assert (result.ok, result.error, result.learnt) == (False, "away", None)


async def test_all_listings_of_a_feed_share_what_one_has_taught() -> None:
    """Substreams share detected capabilities: requests in flight are repeated, the search is not."""
    api, store = Picky(most=300), MemoryStore()
    names = tuple(f"q{number}" for number in range(9))
    result = await rounds(api, store, achievements=True, query=ASKED, qualifications=names, at_once=3)
    assert (result.ok, result.created) == (True, 9)
    assert len(api.asked) == 3 + 6 + 9
    assert result.learnt.refused == ("limit (taken: 250)", "fields")


# Laws of :mod:`poller.source.paging`.


def page(page_token: str | None = None, delta_token: str | None = None) -> Page:
    return Page(b"", delta_token, page_token)


@pytest.mark.parametrize(
    "end", [b'{"results":[]}', b'{"results":[],"pageToken":null}', b'{"results":[],"pageToken":""}']
)
def test_a_page_without_a_page_token_is_the_last(end: bytes) -> None:
    """An absent, null or empty page token ends the listing, whatever the number of records."""
    drain = ListingReader(ListQuery())
    assert drain.next_request(page("p")) == (("pageToken", "p"),)
    assert drain.next_request(at_once(decode_page(end))) is None
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
    """The first or last delta token of the pages is kept, as configured; pages without one do not count."""
    drain = ListingReader(ListQuery(keep=keep))
    for number, token in enumerate(tokens):
        drain.next_request(page(f"p{number}", token))
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
    """Fields are written in the configured style, since the reference defines none for arrays."""
    query = ListQuery(limit=5, fields=("id", "name"), style=style)
    assert query.first(None) == (("limit", "5"), *fields)
    assert query.first("d") == (("limit", "5"), *fields, ("sinceDeltaToken", "d"))


def test_further_pages_repeat_the_parameters_or_not() -> None:
    """A further page repeats the first parameters with ``all``, and has only its token with ``token-only``."""
    repeating, alone = ListQuery(limit=5, fields=("id",)), ListQuery(limit=5, fields=("id",), page_params="token-only")
    assert repeating.further("d", "p") == (*repeating.first("d"), ("pageToken", "p"))
    assert alone.first("d") == repeating.first("d")
    assert alone.further("d", "p") == (("pageToken", "p"),)
    assert ListQuery().first(None) == ()
    assert ListingReader(alone, "d").first_request() == alone.first("d")


def test_a_circle_is_an_error() -> None:
    """A page token that comes a second time is an error, however many pages lie between."""
    drain = ListingReader(ListQuery())
    for token in ("a", "b", "c"):
        drain.next_request(page(token))
    with pytest.raises(SourceNonsense, match="circle"):
        drain.next_request(page("a"))


def test_a_listing_has_an_end() -> None:
    """A listing may have ``max_pages`` pages; a token on the last of them is an error."""
    fine, endless = ListingReader(ListQuery(max_pages=3)), ListingReader(ListQuery(max_pages=3))
    for drain in (fine, endless):
        assert drain.next_request(page("a")) is not None
        assert drain.next_request(page("b")) is not None
    assert fine.next_request(page()) is None
    with pytest.raises(SourceNonsense, match="max_pages"):
        endless.next_request(page("c"))


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
    """Limit, fields and path change the fingerprint; settings of the reader do not."""
    query = ListQuery(limit=5, fields=("id", "name"))
    other = msgspec.structs.replace(query, **change)
    assert (other.fingerprint("/a") != query.fingerprint("/a")) == differs
    assert (
        query.fingerprint("/b")
        != query.fingerprint("/a")
        == ListQuery(limit=5, fields=("id", "name")).fingerprint("/a")
    )


def test_a_last_page_that_repeats_itself_ends_the_listing() -> None:
    """If a page repeats its records under its own token, the listing ends; other records are a circle."""
    drain = ListingReader(ListQuery())
    assert drain.next_request(Page(b"1", None, "a")) is not None
    assert drain.next_request(Page(b"2", None, "a")) == (("pageToken", "a"),)
    assert drain.next_request(Page(b"2", None, "a")) is None
    unsteady = ListingReader(ListQuery())
    unsteady.next_request(Page(b"1", None, "a"))
    unsteady.next_request(Page(b"2", None, "a"))
    with pytest.raises(SourceNonsense, match="circle"):
        unsteady.next_request(Page(b"3", None, "a"))


def test_the_same_records_under_a_new_token_are_a_circle() -> None:
    """Repeated records under a new token are an error; several empty pages in a row are not."""
    drain = ListingReader(ListQuery())
    assert drain.next_request(Page(b"1", None, "a")) is not None
    for token in ("b", "c", "d"):
        assert drain.next_request(Page(b"", None, token)) is not None
    with pytest.raises(SourceNonsense, match="repeats the records"):
        drain.next_request(Page(b"1", None, "e"))


# Laws of :mod:`poller.source.paging`.


class Listing:
    """Pages by page token, "" for the first; each names the next. Records the requests."""

    def __init__(self, *pages: tuple[str, str | None]) -> None:
        self.asked: list[str] = []
        self.left = 0
        self.more = asyncio.Event()
        self.stuck = {"never"}
        self._pages = dict(pages)

    async def get(self, _path: str, params: Params) -> bytes:
        token = dict(params).get("pageToken", "")
        self.asked.append(token)
        self.more.set()
        if token in self.stuck:
            try:
                await asyncio.Event().wait()
            finally:
                self.left += 1
        if token not in self._pages:
            raise SourceUnavailable(f"no page {token}")
        return json.dumps({"results": [token], "pageToken": self._pages[token]}).encode()


async def read_into(seen: list[list[bytes]], listing: Listing) -> None:
    """Read to the end; ``seen`` gets the records of each page, also if an error follows."""
    async with aclosing(read_pages(listing.get, "/x", ListingReader(ListQuery()))) as pages:
        async for page in pages:
            seen += [page.records]


async def test_a_page_is_given_out_while_the_next_one_is_being_fetched() -> None:
    """When a page is given out, the next one is on its way, although its user waits for nothing; no further one is."""
    listing = Listing(("", "a"), ("a", "b"), ("b", None))
    seen = []
    async with aclosing(read_pages(listing.get, "/x", ListingReader(ListQuery()))) as pages:
        async for page in pages:
            seen.append(page.records)
            assert len(listing.asked) == min(len(seen) + 1, 3)
    assert seen == [[b'""'], [b'"a"'], [b'"b"']]


async def test_all_pages_before_a_failure_are_given_out() -> None:
    """The pages before a failed request are given out; then the failure is raised unchanged."""
    listing = Listing(("", "a"), ("a", "gone"))
    seen: list[list[bytes]] = []
    with pytest.raises(SourceUnavailable, match="no page gone"):
        await read_into(seen, listing)
    assert seen == [[b'""'], [b'"a"']]


@pytest.mark.parametrize("before", range(3))
async def test_an_answer_that_cannot_be_read_is_named_by_its_page(before: int) -> None:
    """An operator finds it in a listing of many pages; the only one needs no number."""

    async def get(_path: str, params: Params) -> bytes:
        number = int(dict(params).get("pageToken", 0))
        return (
            b'{"results":[{"id":"x' if number == before else b'{"results":[%d],"pageToken":"%d"}' % (number, number + 1)
        )

    seen: list[list[bytes]] = []
    with pytest.raises(SourceNonsense) as caught:
        async with aclosing(read_pages(get, "/x", ListingReader(ListQuery()))) as pages:
            async for page in pages:
                seen += [page.records]
    where = f"page {before + 1}: " if before else ""
    assert (len(seen), str(caught.value).startswith(f"{where}the answer is not JSON")) == (before, True)


async def test_the_page_that_closes_a_circle_is_given_out() -> None:
    """The page that closes a circle is given out before the listing fails."""
    listing = Listing(("", "a"), ("a", "b"), ("b", "a"))
    seen: list[list[bytes]] = []
    with pytest.raises(SourceNonsense, match="circle"):
        await read_into(seen, listing)
    assert seen == [[b'""'], [b'"a"'], [b'"b"']]
    assert listing.asked == ["", "a", "b"]


async def test_closing_ends_the_page_that_is_on_its_way() -> None:
    """Closing the reader cancels the request in flight and leaves no task."""
    listing = Listing(("", "never"))
    async with aclosing(read_pages(listing.get, "/x", ListingReader(ListQuery()))) as pages:
        await anext(pages)
        while "never" not in listing.asked:
            listing.more.clear()
            await listing.more.wait()
    assert listing.left == 1
    assert asyncio.all_tasks() == {asyncio.current_task()}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([0, 1, 900, SLICE_BYTES // 2, SLICE_BYTES, SLICE_BYTES + 1]), max_size=12),
    st.integers(0, 600),
)
def test_slices_are_the_records_in_order_within_their_bounds(sizes: list[int], more: int) -> None:
    """The slices are the records in order, each within its limits unless a single record is larger."""
    records = [Rejected(raw, "") for raw in [bytes(size) for size in sizes] + [b"x"] * more]
    parts = list(slices(records))
    assert [record for part in parts for record in part] == records
    for part in parts:
        assert 0 < len(part) <= SLICE_RECORDS
        assert len(part) == 1 or size_of(part) <= SLICE_BYTES
    for part, following in pairwise(parts):
        assert len(part) == SLICE_RECORDS or size_of([*part, following[0]]) > SLICE_BYTES


def size_of(part: Sequence[Record | Rejected]) -> int:
    return sum(len(record.raw) for record in part)
