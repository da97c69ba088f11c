"""Laws of :mod:`poller.source.reading`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import aclosing
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poller.changes.records import Record, Rejected
from poller.errors import SourceNonsense, SourceUnavailable
from poller.source.paging import Drain, Params, Query
from poller.source.reading import SLICE_BYTES, SLICE_RECORDS, read_pages, slices


class Listing:
    """Pages by page token, "" for the first; each names the next. What was asked is kept."""

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
    """Read to the end; what was given out is in ``seen``, whatever is raised."""
    async with aclosing(read_pages(listing.get, "/x", Drain(Query()))) as pages:
        async for page in pages:
            seen += [page.records]


async def test_a_page_is_given_out_while_the_next_one_is_being_fetched() -> None:
    """The request for page n+1 is on its way before page n is done with, and no further one is."""
    listing = Listing(("", "a"), ("a", "b"), ("b", None))
    seen = []
    async with aclosing(read_pages(listing.get, "/x", Drain(Query()))) as pages:
        async for page in pages:
            seen.append(page.records)
            ahead = min(len(seen) + 1, 3)
            while len(listing.asked) < ahead:
                listing.more.clear()
                await listing.more.wait()
            assert len(listing.asked) == ahead
    assert seen == [[b'""'], [b'"a"'], [b'"b"']]


async def test_all_pages_before_a_failure_are_given_out() -> None:
    """What came before the failing exchange is there; then the failure is raised as it is."""
    listing = Listing(("", "a"), ("a", "gone"))
    seen: list[list[bytes]] = []
    with pytest.raises(SourceUnavailable, match="no page gone"):
        await read_into(seen, listing)
    assert seen == [[b'""'], [b'"a"']]


async def test_the_page_that_closes_a_circle_is_given_out() -> None:
    """Its records count; only then does the listing fail."""
    listing = Listing(("", "a"), ("a", "b"), ("b", "a"))
    seen: list[list[bytes]] = []
    with pytest.raises(SourceNonsense, match="circle"):
        await read_into(seen, listing)
    assert seen == [[b'""'], [b'"a"'], [b'"b"']]
    assert listing.asked == ["", "a", "b"]


async def test_closing_ends_the_page_that_is_on_its_way() -> None:
    """Whoever stops reading leaves no task behind."""
    listing = Listing(("", "never"))
    async with aclosing(read_pages(listing.get, "/x", Drain(Query()))) as pages:
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
    """Joined they are the records; each has at most so many records and bytes, unless a single record is larger."""
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
