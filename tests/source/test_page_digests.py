"""Laws of :mod:`poller.changes.full_readings`: pages that are unchanged are passed over, and nothing else differs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.changes.diff import Snapshot
from poller.changes.full_readings import (
    Confirmation,
    DigestBasis,
    PageDigests,
    confirmation_mark,
    decode_digests,
    page_digest,
)
from poller.changes.plan import Commit
from poller.errors import StoreUnavailable
from poller.resources import Resource
from poller.source.feed import RoundMode, RoundResult
from poller.store.feed_state import CONFIRMATION, MISSING_AT
from tests.source.round_sides import FEED, GONE, MemoryStore, Round, Script, records

FULL = msgspec.structs.replace(FEED, delta=False)
Listing = list[list[Any]]


class Counting(MemoryStore):
    """A store that counts how many snapshots are asked for, and may have no digests."""

    def __init__(self, *, digests: bool = True) -> None:
        super().__init__()
        self.asked = 0
        self.unpacked: list[str] = []
        self.has_digests = digests

    async def known(self, record_keys: list[str]) -> Mapping[str, Snapshot]:
        self.asked += len(record_keys)
        self.unpacked += record_keys
        return await super().known(record_keys)

    async def are_stored(self, record_keys: list[str], raws: Sequence[bytes]) -> list[bool]:
        same = await super().are_stored(record_keys, raws)
        self.asked += sum(same)  # the others are asked for once more
        return same

    async def page_digests(self) -> bytes | None:
        return await super().page_digests() if self.has_digests else None


def a_feed(feed: Any = FULL, *, digests: bool = True) -> tuple[Round, Counting]:
    read, store = Round(feed), Counting(digests=digests)
    read.store = store
    read.clock.drive_monotonic()  # a slow machine writes no marks of progress between
    return read, store


def pages(*listed: list[Any], path: str = "/contractTypes", since: str | None = None) -> Script:
    """A listing of these pages."""
    script = Script()
    for number, page in enumerate(listed):
        further = str(number + 1) if number + 1 < len(listed) else None
        script.on(page, path=path, page=str(number) if number else None, further=further, delta="d1")
    return script.on([], path=path, since="d1", delta="d1")


async def settled(read: Round, *listed: list[Any]) -> None:
    """Read this listing twice: the second reading finds nothing, and leaves digests."""
    for _ in range(2):
        assert (await read(pages(*listed))).ok
    assert read.store.digests is not None


async def test_of_an_unchanged_listing_no_snapshot_is_read() -> None:
    """No record is compared, all are counted, and nothing is missing."""
    read, store = a_feed()
    await settled(read, records("a", "b"), records("c"))
    store.asked = 0
    result = await read(pages(records("a", "b"), records("c")))
    assert (result.records, result.unchanged, result.pages, result.changes, store.asked) == (3, 3, 2, 0, 0)


async def test_of_pages_that_have_shifted_only_what_differs_is_unpacked() -> None:
    """A record at the front moves all others: of these, seals are compared and no snapshot is unpacked."""
    read, store = a_feed()
    await settled(read, records("a", "b"), records("c"))
    store.unpacked.clear()
    result = await read(pages(records("n", "a"), [*records("b"), *records("c", value=2)]))
    assert (result.records, result.unchanged, result.created, result.modified) == (4, 2, 1, 1)
    assert store.unpacked == ["n", "c"]


@pytest.mark.parametrize(
    ("more", "counted"),
    [([], 3), ([*records("n")], 4), ([{"n": 1, "id": "x" * 2000}], None), ([*records("a", value=2)], 3)],
    ids=["shifted", "a new one", "an unusable one", "one that was listed before"],
)
async def test_a_listing_of_known_records_is_counted(more: list[Any], counted: int | None) -> None:
    """The store may look for missing records by counting; not where a record is listed that it does not have."""
    read, store = a_feed()
    await settled(read, records("a", "b"), records("c"))
    await read(pages(records("a"), [*records("b", "c"), *more]))
    assert store.counted[-1] == counted


async def test_only_pages_that_differ_are_compared() -> None:
    """What changed, came and went is published as without digests."""
    read, store = a_feed()
    await settled(read, records("a", "b"), records("c", "d"), records("e"))
    store.asked = 0
    changed = pages(records("a", "b"), records("c", value=2), records("e", "f")).on(GONE, path="/contractTypes/d")
    result = await read(changed)
    assert (result.modified, result.created, result.removed, result.unchanged) == (1, 1, 1, 3)
    assert store.asked < 6  # c, e, f, and d once more
    store.asked = 0
    assert (await read(changed)).unchanged == 5
    assert store.asked == 0


async def test_a_page_less_is_not_the_same_listing() -> None:
    """All pages are known, and one is not there: what it held is missing."""
    read, _ = a_feed()
    await settled(read, records("a"), records("b"))
    result = await read(pages(records("a")).on(GONE, path="/contractTypes/b"))
    assert (result.removed, read.causes[-1][:2]) == (1, ("b", "removed"))


async def test_an_operators_resync_compares_everything() -> None:
    """It reads everything, even what is unchanged."""
    read, store = a_feed()
    await settled(read, records("a"), records("b"))
    store.asked = 0
    read.store.mark("resync", "1")
    assert (await read(pages(records("a"), records("b")))).mode is RoundMode.RESYNC
    assert store.asked == 2


@pytest.mark.parametrize(
    "after",
    [{"ignore": ("/n",)}, {"id_field": "id", "removals": False}, {"ignore": ("/n",), "removals": False}],
    ids=["ignore", "removals", "both"],
)
async def test_other_rules_compare_everything(after: dict[str, Any]) -> None:
    """Digests say nothing about other rules of comparison."""
    read, store = a_feed()
    await settled(read, records("a"), records("b"))
    store.asked = 0
    read.feed = msgspec.structs.replace(read.feed, **after)
    await read(pages(records("a"), records("b")))
    assert store.asked == 2


@pytest.mark.parametrize(
    "page",
    [[*records("c"), {"n": 1}], [*records("c"), {"id": "x", "n": "\ud800"}], [*records("c"), *records("c", value=2)]],
    ids=["no id", "no UTF-8", "a record twice"],
)
async def test_a_page_that_is_not_stored_as_it_is_has_no_digest(page: list[Any]) -> None:
    """The next reading looks at it once more."""
    read, store = a_feed()
    for _ in range(2):
        await read(pages(records("a", "b"), page))
    store.asked = 0
    await read(pages(records("a", "b"), page))
    assert store.asked > 0


async def test_a_record_that_is_known_and_not_listed_is_looked_for_each_time() -> None:
    """While the single-record endpoint has it, no reading is the same as the one before."""
    read, _ = a_feed()
    await settled(read, records("a"), records("b"))
    here = pages(records("a")).whole("/contractTypes/b", {"id": "b"})
    assert [(await read(here)).changes for _ in range(3)] == [0, 0, 0]
    assert (await read(pages(records("a")).on(GONE, path="/contractTypes/b"))).removed == 1


async def test_a_page_with_a_record_that_was_written_in_the_round_is_compared() -> None:
    """A record moves to an earlier page in another version, and the later page is as it was."""
    read, _ = a_feed()
    await settled(read, records("x"), records("a"))
    result = await read(pages([*records("x"), *records("a", value=2)], records("a")))
    assert (result.modified, [event["data"]["record"]["n"] for event in read.store.events[-2:]]) == (2, [2, 1])


async def test_a_page_whose_record_was_taken_for_its_twin_is_compared() -> None:
    """An integer id takes over the text of the same digits, which stands on a later, unchanged page: both are there."""
    read, _ = a_feed()
    await settled(read, records("x"), records("7"))
    for _ in range(2):
        assert (await read(pages([*records("x"), {"id": 7, "n": 1}], records("7")))).ok
    assert {key for key, one in read.store.snapshots.items() if not one.removed} == {"x", "7", "\x017"}


async def test_a_record_on_two_pages_leaves_no_digest() -> None:
    """What is stored of it may be the version of either page."""
    read, _ = a_feed()
    for _ in range(3):
        await read(pages(records("a", "b"), records("b", value=2)))
    assert read.store.digests is None


async def test_what_a_delta_brings_beside_a_reading_leaves_no_digest() -> None:
    """The record is on no page that was read: a listing of the same pages would not say that it exists."""
    read, _ = a_feed(FEED)
    await read(pages(records("a"), records("b")))
    script = pages(records("a"), records("b")).on(records("c"), since="d1", delta="d2").on([], since="d2", delta="d2")
    read.store.mark(CONFIRMATION, confirmation_mark(Confirmation()) or "")
    assert (await read(script)).created == 1
    assert read.store.digests is None


def test_digests_are_valid_on_their_basis_alone() -> None:
    """Another generation, number, reading, mark or rule makes them useless, and so does another version's form."""
    basis = DigestBasis("g", 7, "2026-01-01T00:00:00Z", None, "r")
    digests = PageDigests()
    digests.add(page_digest(b"1,2"), is_stored=True)
    digests.add(page_digest(b"3"), is_stored=False)
    stored = digests.encode(basis)
    assert decode_digests(stored, basis) == {page_digest(b"1,2")}
    others: list[dict[str, Any]] = [
        {"generation": "h"}, {"sequence": 8}, {"read_at": "2026-01-01T00:00:01Z"}, {"missing_at": 5}, {"rules": "s"},
    ]  # fmt: skip
    assert not any(decode_digests(stored, msgspec.structs.replace(basis, **other)) for other in others)
    assert not decode_digests(None, basis)
    assert not decode_digests(b"\x93\x01", basis)


# One of each: an id, its version; a version of 9 is no usable record.
RECORD = st.tuples(st.sampled_from(["a", "b", "c", "d", 1, "1"]), st.sampled_from([0, 0, 0, 0, 1, 2, 9]))
PAGES = st.lists(st.lists(RECORD, max_size=3), min_size=4, max_size=4)
LISTINGS = st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True)
BETWEEN = st.sampled_from(["nothing", "nothing", "nothing", "ignore", "removals", "mark", "write", "resync", "wait"])
STEPS = st.lists(
    st.tuples(st.integers(0, 2), BETWEEN, st.none() | st.integers(1, 3), st.sets(st.sampled_from("abcd1"))),
    min_size=3,
    max_size=9,
)


def _page(page: list[tuple[Any, int]]) -> list[Any]:
    return [{"id": one, "n": version} if version < 9 else {"id": one, "n": "\ud800"} for one, version in page]


class Step(msgspec.Struct, frozen=True):
    """One round, and what happens before it."""

    listing: Listing
    between: str
    fails_at: int | None
    there: frozenset[str]


async def played(steps: list[Step], feed: Any, *, digests: bool) -> tuple[list[RoundResult], Round]:
    """The rounds, with another process writing between them."""
    read, store = a_feed(feed, digests=digests)
    results = []
    for step in steps:
        await _between(step.between, read)
        commits = 0

        def failing(_: Commit, at: int | None = step.fails_at) -> StoreUnavailable | None:
            nonlocal commits
            commits += 1
            return StoreUnavailable("gone") if commits == at else None

        store.failing = failing
        path = read.feed.resource.path
        script = pages(*map(_page, step.listing), path=path)
        for one in ("a", "b", "c", "d", "1"):
            if one in step.there:
                script.whole(f"{path}/{one}", {"id": one})
            else:
                script.on(GONE, path=f"{path}/{one}")
        results.append(await read(script))
    return results, read


async def _between(what: str, read: Round) -> None:
    store, state = read.store, read.store.state
    store.failing = lambda _: None
    if what == "ignore":
        read.feed = msgspec.structs.replace(read.feed, ignore=() if read.feed.ignore else ("/n",))
    elif what == "removals":
        read.feed = msgspec.structs.replace(read.feed, removals=not read.feed.removals)
    elif what == "resync":
        store.mark("resync", "1")
    elif what == "wait":
        store.now_ms += 120_000
        read.clock.pass_by(FEED.second_look * 2)
    elif what in ("mark", "write") and store.snapshots:
        key, known = min(store.snapshots.items())
        if not known.removed:
            other = (
                {"missing": True} if what == "mark" else {"raw": b'{"id":"a","n":7}', "sequence": state.sequence + 1}
            )
            told = {"subject": key, "type": "x.created.v1", "sequence": f"{state.sequence + 1:020d}"}
            event = json.dumps({**told, "data": {"cause": "full"}}).encode()
            written = {key: msgspec.structs.replace(known, **other)}
            events = (event,) if what == "write" else ()
            marks = {MISSING_AT: str(store.now_ms)} if what == "mark" else {}
            digests = store.digests
            await store.commit(Commit(state.generation, state.sequence, written, events, marks=marks))
            store.digests = digests  # an earlier version of the program does not delete them


FEEDS = [
    FULL,
    msgspec.structs.replace(FULL, newest=True),
    msgspec.structs.replace(FULL, resource=Resource("positions", "position", "/positions")),
    FEED,
]


@given(found=PAGES, listings=st.lists(LISTINGS, min_size=3, max_size=3), steps=STEPS, feed=st.sampled_from(FEEDS))
def test_what_is_published_does_not_depend_on_digests(found: Any, listings: Any, steps: Any, feed: Any) -> None:
    """The same events, snapshots and counts, whatever is listed, written by others, configured, or fails between."""
    listed = [[found[page] for page in listing] for listing in listings]
    told = [Step(listed[which], between, at, frozenset(there)) for which, between, at, there in steps]
    results, read = asyncio.run(played(told, feed, digests=True))
    expected, plain = asyncio.run(played(told, feed, digests=False))
    assert read.store.events == plain.store.events
    assert read.store.snapshots == plain.store.snapshots
    counts = ("ok", "mode", "records", "unchanged", "created", "modified", "removed", "quarantined", "pages", "error")
    for one, other in zip(results, expected, strict=True):
        assert [getattr(one, name) for name in counts] == [getattr(other, name) for name in counts]
