"""Laws of a first reading: nothing is asked for that cannot be there, and nothing is taken for new that is."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from poller.changes.diff import Snapshot
from poller.changes.plan import SeenKeys
from poller.lifecycle import at_once
from poller.source.feed import RoundMode
from poller.source.paging import decode_page
from poller.source.writer import RoundWriter
from poller.store.structure import layouts
from tests.harness.clock import StubClock
from tests.source.round_sides import FEED, NOON, MemoryStore
from tests.source.test_writer_pages import gone
from tests.store.records import unavailability


class Asked(MemoryStore):
    """Notes the keys whose snapshots are read."""

    def __init__(self, kept: str) -> None:
        super().__init__()
        self.mark("kept", kept)
        self.asked: list[list[str]] = []

    async def known(self, record_keys: list[str]) -> Mapping[str, Snapshot]:
        self.asked.append(record_keys)
        return await super().known(record_keys)


def writer_of(store: MemoryStore) -> RoundWriter:
    return RoundWriter(FEED, store, store.state, gone, StubClock(now=lambda: NOON))


async def read(writer: RoundWriter, *records: bytes, mode: RoundMode = RoundMode.BASELINE) -> None:
    page = at_once(decode_page(b'{"results":[%b],"deltaToken":"d"}' % b",".join(records)))
    await writer.page(page, mode=mode, path="/contractTypes", seen=SeenKeys())


@pytest.mark.parametrize("mode", [RoundMode.BASELINE, RoundMode.DELTA])
async def test_snapshots_are_read_of_records_alone_that_can_have_one(mode: RoundMode) -> None:
    """Of a feed that kept nothing, only the snapshots of records are read that this round has met before."""
    store = Asked("0 0 0")
    writer = writer_of(store)
    await read(writer, b'{"id":"a"}', b'{"id":"b"}', mode=mode)
    await read(writer, b'{"id":"c"}', b'{"id":"b"}', b'{"id":"d"}', mode=mode)
    await read(writer, b'{"id":"d","x":1}', b'{"id":"e"}', b'{"id":"a"}', mode=mode)
    assert store.asked == [[], ["b"], ["d", "a"]]
    assert [(one["subject"], one["data"]["revision"]) for one in store.events] == [
        *(("a", 1), ("b", 1), ("c", 1), ("d", 1), ("d", 2), ("e", 1))
    ]


@pytest.mark.parametrize("kept", ["1 0 0", ""])
async def test_a_feed_that_may_know_records_is_asked_for_all(kept: str) -> None:
    """Where something is kept, or where that is not known, a record that is known is not published again."""
    store = Asked(kept)
    store.snapshots["a"] = Snapshot(1, 0, b'{"id":"a"}')
    await read(writer_of(store), b'{"id":"a"}', b'{"id":"b"}')
    assert store.asked == [["a", "b"]]
    assert [one["subject"] for one in store.events] == ["b"]


async def test_a_record_that_came_before_is_known_however_many_came_between() -> None:
    """Of many records, too, each that is listed again is compared with what was published of it."""
    store, count = MemoryStore(), 12_000
    store.mark("kept", "0 0 0")
    writer = writer_of(store)
    for start in range(0, count, 1000):
        await read(writer, *(b'{"id":"%d"}' % number for number in range(start, start + 1000)))
    await read(writer, b'{"id":"3"}', b'{"id":"11500","x":1}', b'{"id":"new"}')
    assert (writer.tally.created, writer.tally.modified, writer.tally.unchanged) == (count + 1, 1, 1)


async def test_a_version_that_waits_to_be_written_is_known() -> None:
    """A record that comes again on the next page is compared with its commit, though that is still to be written."""
    store = MemoryStore()
    store.mark("kept", "0 0 0")
    writer = writer_of(store)
    async with writer.commits_in_order():
        await read(writer, b'{"id":"a"}')
        await read(writer, b'{"id":"a"}', b'{"id":"b"}')
    assert [one["subject"] for one in store.events] == ["a", "b"]


async def test_the_writer_of_each_round_meets_keys_anew() -> None:
    """What one round has met says nothing to the next, which begins with what the store keeps then."""
    store = Asked("0 0 0")
    await read(writer_of(store), b'{"id":"a"}')
    store.snapshots.clear()
    store.fields = {b"generation": b"h", b"sequence": b"1", b"kept": b"0 0 0"}
    await read(writer_of(store), b'{"id":"a"}')
    assert store.asked == [[], []]
    assert [one["subject"] for one in store.events] == ["a", "a"]


@pytest.mark.parametrize("mode", [RoundMode.BASELINE, RoundMode.FULL, RoundMode.DELTA])
async def test_new_records_are_read_by_the_layout_that_the_store_knows(mode: RoundMode) -> None:
    """In a first reading, for nearly all records of others are known; the events are the same."""
    store, plain = MemoryStore(), MemoryStore()
    raws = [unavailability(number) for number in range(9)]
    (store.layout, *_) = layouts([(raw, json.loads(raw)["id"].encode()) for raw in raws])
    for one in (store, plain):
        await read(writer_of(one), *raws, b'{"id":"other"}', mode=mode)
        await read(writer_of(one), *(unavailability(number) for number in range(9, 18)), mode=mode)
    assert store.texts == plain.texts
    assert [commit.alike is not None for commit in store.commits] == [False, mode is RoundMode.BASELINE]
    assert [commit.alike for commit in plain.commits] == [None, None]
