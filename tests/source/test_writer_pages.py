"""Laws of :mod:`poller.source.writer`: from the bytes of a page to the bytes of its events.

No value is changed silently: a record arrives byte for byte, or is quarantined with the reason.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Container, Mapping, Sequence

import msgspec
import pytest

from poller.changes.diff import Snapshot
from poller.changes.full_readings import OlderVersions
from poller.changes.plan import RemovalGuard, SeenKeys
from poller.changes.records import MAX_ID_LENGTH, MAX_RECORD_BYTES
from poller.errors import SourceRefused
from poller.lifecycle import at_once
from poller.source.feed import RoundMode
from poller.source.paging import SLICE_RECORDS, Params, decode_page
from poller.source.writer import RoundWriter
from poller.store.feed import MissingRecords
from poller.store.snapshots import PackedSnapshots
from tests.harness.clock import StubClock
from tests.source.round_sides import FEED, NOON, MemoryStore, Round, Script

PARTIAL = msgspec.structs.replace(FEED, partial=True)
GOOD = b'{"id":"good"}'
DEEP = b"[" * 99 + b"]" * 99
EARLY, LATE = "2025-03-01T09:00:00Z", "2025-03-01T10:00:00Z"


async def gone(path: str, params: Params) -> bytes:
    """An API that answers 404 for each record."""
    raise SourceRefused(f"GET {path}: {params}", status=404)


async def write(
    store: MemoryStore, *records: bytes, mode: RoundMode = RoundMode.DELTA, partial: bool = False
) -> RoundWriter:
    """Write one page of a round, given as the API's bytes."""
    writer = RoundWriter(PARTIAL if partial else FEED, store, store.state, gone, StubClock(now=lambda: NOON))
    page = at_once(decode_page(b'{"results":[%b],"deltaToken":"d"}' % b" , ".join(records)))
    await writer.page(page, mode=mode, path="/contractTypes", seen=None)
    return writer


def encoded(store: MemoryStore) -> Sequence[bytes]:
    return [event for commit in store.commits for event in commit.events]


def published(store: MemoryStore) -> list[object]:
    return [event["data"]["record"] for event in store.events]


@pytest.mark.parametrize(
    "value",
    [
        *(
            b"7" * 4_300,
            b"-" + b"7" * 4_300,
            b"-0",
            b"-0.0",
            b"1e999",
            b"-1E+999",
            b"0.1000000000000000000000000001",
            b"1.50",
        ),
        *(b'"%b"' % (b"7" * 5_000), b"0." + b"7" * 5_000, b"7" * 5_000 + b".0", b"7" * 5_000 + b"e2"),
        *(b"18446744073709551616", b"1e-999", DEEP, b"{ }", b'{"a" : [ 1 ,2 ]}'),
        *(rb'"\ud83d\ude00"', rb'"\u0000"', rb'"\/"', "\u00e9e\u0301".encode().join([b'"', b'"'])),
    ],
    ids=lambda value: repr(value[:12]),
)
async def test_every_value_arrives_byte_for_byte(value: bytes) -> None:
    """Long integers, floats of any spelling and escapes arrive in the event byte for byte."""
    store = MemoryStore()
    raw = b'{"id":"odd", "x":%b}' % value
    writer = await write(store, raw, GOOD)
    assert (writer.tally.created, store.quarantine) == (2, [])
    assert b'"record":%b,"revision"' % raw in encoded(store)[0]
    assert store.snapshots["odd"].raw == raw
    again = await write(store, raw, GOOD)
    assert again.tally.unchanged == 2


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"NaN", "not JSON"),
        (b"-Infinity", "not JSON"),
        (rb'"\ud800"', "not JSON"),
        (rb'{"\udc00":1}', "not JSON"),
        (b'"\xff"', "not UTF-8"),
        (b'{"k\xc3":1}', "not UTF-8"),
        (b'"\xed\xa0\x80"', "not UTF-8"),
        (b"1e99999999999999999999", "a number is out of any range"),
        (b'1,"x":1', 'the key "x" stands twice'),
        (b'{"y":1,"y":null}', 'the key "y" stands twice'),
        (b"[%b]" % DEEP, "nested too deep: more than 100 levels"),
        (b"[" * 100_000 + b"]" * 100_000, "nested too deep: more than 100 levels"),
        (b"7" * 4_301, "an integer of 4301 digits: at most 4300 are usable"),
        (b'{"y":[1,-%b]}' % (b"7" * 5_000), "an integer of 5000 digits: at most 4300 are usable"),
    ],
    ids=lambda value: repr(value[:16]),
)
async def test_what_cannot_be_used_goes_to_the_quarantine_alone(value: bytes, reason: str) -> None:
    """An unusable record is quarantined with its bytes and reason; its snapshot and the other records stay."""
    store = MemoryStore()
    await write(store, b'{"id":"odd"}')
    raw = b'{"id":"odd","x":%b}' % value
    for partial in (False, True):
        writer = await write(store, raw, GOOD, partial=partial)
        assert writer.tally.quarantined == 1
        assert store.quarantine.pop()[0] == raw
        assert store.snapshots["odd"].raw == b'{"id":"odd"}'
    assert published(store) == [{"id": "odd"}, {"id": "good"}]
    await write(store, raw)
    assert store.quarantine[0][1].startswith(reason)


async def test_what_is_there_and_cannot_be_used_is_not_gone() -> None:
    """A round has seen a record whose id can be read, even if the record is unusable or repeated."""
    store, bad = MemoryStore(), b'{"id":"odd","x":1,"x":2}'
    for records in ((bad,), (bad, bad), (bad, b'{"id":"odd"}')):
        seen = SeenKeys()
        writer = RoundWriter(FEED, store, store.state, gone, StubClock(now=lambda: NOON))
        page = at_once(decode_page(b'{"results":[%b]}' % b",".join(records)))
        await writer.page(page, mode=RoundMode.FULL, path="/contractTypes", seen=seen)
        assert "odd" in seen


async def test_a_page_with_a_version_that_is_put_off_is_not_as_it_is_stored() -> None:
    """Such a page is compared again by the next reading."""
    store = MemoryStore()
    await write(store, b'{"id":"a","lastModifiedAt":"%b"}' % LATE.encode(), GOOD)
    writer = RoundWriter(FEED, store, store.state, gone, StubClock(now=lambda: NOON))
    page = at_once(decode_page(b'{"results":[{"id":"a","lastModifiedAt":"%b"},%b]}' % (EARLY.encode(), GOOD)))

    async def is_stored(older: OlderVersions | None) -> bool:
        return await writer.page(page, mode=RoundMode.FULL, path="/contractTypes", seen=SeenKeys(), older=older)

    assert [await is_stored(OlderVersions()), await is_stored(None)] == [False, False]
    assert (writer.tally.unchanged, writer.tally.modified) == (2, 1)
    assert await is_stored(OlderVersions())


class Turns(MemoryStore):
    """Counts the turns of other tasks, in all and before the first read of the store."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = 0
        self.before_asked: int | None = None

    async def known(self, record_keys: list[str]) -> Mapping[str, Snapshot]:
        if self.before_asked is None:
            self.before_asked = self.turns
        return await super().known(record_keys)

    def restart(self) -> None:
        self.turns, self.before_asked = 0, None

    async def count(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.turns += 1


class Packed(MemoryStore):
    """A store that unpacks each snapshot when it is asked for."""

    async def known(self, record_keys: list[str]) -> Mapping[str, Snapshot]:
        return self._packed(await super().known(record_keys))

    async def absent(self, seen: Container[str], *, most: int, known: int | None = None) -> MissingRecords:
        absent = await super().absent(seen, most=most, known=known)
        return msgspec.structs.replace(absent, some=self._packed(absent.some))

    def _packed(self, snapshots: Mapping[str, Snapshot]) -> Mapping[str, Snapshot]:
        return PackedSnapshots({}, {key: key.encode() for key in snapshots}, lambda key, _: self.snapshots[key])


async def test_large_known_records_are_compared_and_removed_a_few_at_a_time() -> None:
    """However small the records of a page, and however many are gone, few large known ones are in one commit."""
    store, size = Packed(), 3 * 1024 * 1024
    large = [b'{"id":"r%d","x":"%b"}' % (number, b" " * size) for number in range(9)]
    store.snapshots = {f"r{number}": Snapshot(1, 0, raw) for number, raw in enumerate(large)}
    await write(store, GOOD, *(b'{"id":"r%d"}' % number for number in range(4)), b'{"id":"r4","x":1,"x":2}')
    assert [(len(commit.events), len(commit.rejected)) for commit in store.commits] == [(3, 0), (2, 0), (0, 1)]
    assert [event["type"].split(".")[-2] for event in store.events] == ["created", *["modified"] * 4]
    listing = Script().page(GOOD)
    for number in range(9):
        listing.on(SourceRefused("not there", status=404), path=f"/contractTypes/r{number}")
    read = Round(msgspec.structs.replace(FEED, delta=False, breaker=RemovalGuard(None)))
    read.store = store
    store.commits.clear()
    store.mark("read_at", NOON.isoformat())
    store.mark("query", read.feed.fingerprint)
    assert (await read(listing)).removed == 9
    assert max(sum(len(one.raw) for one in commit.snapshots.values()) for commit in store.commits) <= 2 * size + 100


@pytest.mark.parametrize("raw", [b"0", b'{"id":%d,"x":NaN}', b'{"id":%d}', b'{"id":1,"k%d":0}'])
async def test_a_page_of_thousands_gives_way_to_others(raw: bytes) -> None:
    """While a large page is read and compared, other tasks get their turns.

    The turns of the event loop are counted, for new and for known records.
    """
    store, count = Turns(), 4_000
    records = [raw.replace(b"%d", b"%d" % number) for number in range(count)]
    page = at_once(decode_page(b'{"results":[%b]}' % b",".join(records)))
    counting = asyncio.create_task(store.count())
    for feed in (FEED, FEED, PARTIAL):
        store.restart()
        writer = RoundWriter(feed, store, store.state, gone, StubClock(now=lambda: NOON))
        await writer.page(page, mode=RoundMode.DELTA, path="/contractTypes", seen=SeenKeys())
        assert writer.tally.records == count
        assert store.before_asked is not None
        assert store.before_asked >= count // 1_000 - 1
        if raw == b'{"id":%d}':
            assert store.turns - store.before_asked >= count // SLICE_RECORDS
    counting.cancel()


async def test_an_id_that_is_an_integer_and_the_same_as_text_are_two_records() -> None:
    """The ids 1 and "1" are two records, however often both are read; subjects are as received."""
    store = MemoryStore()
    raws = b'{"id":1,"n":1}', b'{"id":"1","n":2}', b'{"id":2,"n":1}', b'{"id":"\xc3\xa9"}', b'{"id":"e\xcc\x81"}'
    assert (await write(store, *raws)).tally.created == 5
    assert (await write(store, *raws)).tally.unchanged == 5
    assert (await write(store, b'{"id":1,"n":3}')).tally.modified == 1
    event = store.events[-1]
    assert (event["subject"], event["partitionkey"], event["data"]["record"]["id"]) == ("1", "1", 1)
    assert event["data"]["previous"] == {"id": 1, "n": 1}
    assert len({event["id"] for event in store.events}) == len(store.events)


async def test_an_integer_is_no_longer_an_id_than_text() -> None:
    """The length limit of an id applies to integers as to text."""
    store = MemoryStore()
    writer = await write(store, b'{"id":%b}' % (b"1" * MAX_ID_LENGTH), b'{"id":%b}' % (b"1" * (MAX_ID_LENGTH + 1)))
    assert (writer.tally.created, writer.tally.quarantined) == (1, 1)


async def test_a_part_is_laid_over_what_is_known() -> None:
    """A part keeps absent keys and sets null ones; event, previous and snapshot are whole records."""
    store = MemoryStore()
    await write(store, b'{"id":"a","x":1.0,"y":2,"z":[1, 2]}', partial=True)
    writer = await write(store, b'{"id":"a","y":null,"new":3}', partial=True)
    assert writer.tally.modified == 1
    whole = b'{"id":"a","x":1.0,"y":null,"z":[1, 2],"new":3}'
    assert b'"record":%b,' % whole in encoded(store)[-1]
    assert store.snapshots["a"].raw == whole
    assert store.events[-1]["data"]["changed"] == ["/new", "/y"]
    assert store.events[-1]["data"]["previous"] == {"id": "a", "x": 1.0, "y": 2, "z": [1, 2]}
    again = await write(store, b'{"id":"a","y":null,"new":3}', b'{"x":1,"id":"a"}', partial=True)
    assert (again.tally.unchanged, again.tally.modified) == (2, 0)


@pytest.mark.parametrize("mode", [RoundMode.BASELINE, RoundMode.FULL, RoundMode.RECONCILE, RoundMode.RESYNC])
async def test_a_full_reading_replaces(mode: RoundMode) -> None:
    """Only deltas bring parts; a key that a full round lacks is gone."""
    store = MemoryStore()
    await write(store, b'{"id":"a","x":1}', partial=True)
    await write(store, b'{"id":"a"}', mode=mode, partial=True)
    assert (published(store)[-1], store.events[-1]["data"]["changed"]) == ({"id": "a"}, ["/x"])


async def test_without_the_option_a_delta_replaces() -> None:
    """Without the option a delta brings whole records."""
    store = MemoryStore()
    await write(store, b'{"id":"a","x":1}')
    await write(store, b'{"id":"a"}')
    assert published(store)[-1] == {"id": "a"}


async def test_two_parts_of_a_record_in_one_page_both_count() -> None:
    """Of two parts in one page the later wins for common keys; reading the page again publishes nothing."""
    first = {"id": "a", "n": 1, "x": 1, "lastModifiedAt": EARLY}
    second = {"id": "a", "n": 2, "y": 1, "lastModifiedAt": LATE}
    for parts in ((first, second), (second, first)):
        store = MemoryStore()
        await write(store, b'{"id":"a","n":0,"kept":true}', partial=True)
        page = [json.dumps(part).encode() for part in parts]
        await write(store, *page, partial=True)
        assert published(store)[-1] == {"kept": True, **first, **second}
        again = await write(store, *page, partial=True)
        assert (again.tally.unchanged, len(store.events)) == (2, 2)


async def test_a_part_of_a_removed_record_is_laid_over_its_last_version() -> None:
    """A part of a removed record completes its tombstone; the record is created whole."""
    store = MemoryStore()
    await write(store, b'{"id":"a","x":1}', partial=True)
    store.snapshots["a"] = msgspec.structs.replace(store.snapshots["a"], removed=True)
    assert (await write(store, b'{"id":"a","y":2}', partial=True)).tally.created == 1
    assert published(store)[-1] == {"id": "a", "x": 1, "y": 2}


@pytest.mark.thorough
async def test_parts_make_up_no_record_beyond_the_bound() -> None:
    """A part that would make its record too large is quarantined, whether the others came before it or with it."""
    store = MemoryStore()
    part = b'{"id":"a","k%d":"%b"}'
    large = [part % (number, b" " * (MAX_RECORD_BYTES // 2)) for number in range(2)]
    await write(store, large[0], partial=True)
    writer = await write(store, large[1], partial=True)
    assert (writer.tally.quarantined, writer.tally.modified, len(store.events)) == (1, 0, 1)
    assert store.quarantine[0][1].startswith("parts of a record of 8388")
    assert (await write(MemoryStore(), *large, partial=True)).tally.quarantined == 1


async def test_the_time_of_a_part_without_one_is_that_of_the_record() -> None:
    """A part without a time gives the event the time of the whole record."""
    store = MemoryStore()
    await write(store, b'{"id":"a","lastModifiedAt":"%b"}' % EARLY.encode(), partial=True)
    await write(store, b'{"id":"a","n":1}', partial=True)
    assert [event["time"] for event in store.events] == [EARLY, EARLY]
