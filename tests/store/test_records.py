"""Laws of :mod:`poller.store.records`: one moment, every live record, and scans that begin again."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis
from structlog.testing import capture_logs

from poller.changes.diff import Snapshot
from poller.changes.plan import Commit, plan_removals
from poller.clock import moment_of
from poller.errors import Converting
from poller.redis.client import commands
from poller.store.feed import FeedScripts, FeedStore
from poller.store.feed_state import FORMS
from poller.store.keys import FeedKeys
from poller.store.records import LOOKED_UP, AsOf, RecordChunk, RecordReader, ScanPosition, StoredRecord
from poller.store.snapshots import SAMPLES, SnapshotCodec, name_of
from poller.store.stream import EntryId
from tests.acl import running_with_acl
from tests.harness.clock import StubClock
from tests.servers import Kind, running
from tests.store.records import unavailability
from tests.store.test_feed import FRAME, KEYS, begun, write

CODEC = SnapshotCodec()


def opened(client: Redis, keys: FeedKeys = KEYS) -> FeedStore:
    clock = StubClock(now=lambda: moment_of(1_767_323_045_000))
    return FeedStore(client, FeedScripts(client), keys, nonce="a", lease=timedelta(seconds=600), clock=clock)


def a_record(key: str, number: int) -> bytes:
    return b'{"id":"%b","number":%d}' % (key.encode(), number)


async def scanned(reader: RecordReader, *, count: int = 50) -> AsyncIterator[RecordChunk]:
    """All chunks of one scan."""
    chunk = await reader.scan(count=count)
    yield chunk
    while chunk.next is not None:
        chunk = await reader.scan(ScanPosition.parse(str(chunk.next)), count=count)
        yield chunk


async def all_of(reader: RecordReader, *, count: int = 50) -> dict[str, StoredRecord]:
    return {record.key: record async for chunk in scanned(reader, count=count) for record in chunk.records}


async def remove(store: FeedStore, *record_keys: str) -> None:
    """Publish the removal of these records."""
    state, known = await begun(store), await store.known(list(record_keys))
    commit, _ = plan_removals(
        {key: (key, known[key]) for key in record_keys if key in known and not known[key].removed},
        dict.fromkeys(record_keys, FRAME),
        generation=state.generation,
        sequence=state.sequence,
        recorded="2026-01-02T03:04:05.678Z",
    )
    await store.commit(commit)


async def test_records_are_as_they_were_published(store_client: Redis) -> None:
    """Law: a record has the bytes, id, revision, sequence and time of its last change; a removed one is not listed."""
    store, reader = opened(store_client), RecordReader(store_client, KEYS)
    upper = "0B8E7C5E-9D4A-4D9F-8A55-6C1F3F0E2A11"
    await write(store, [a_record(upper, 1), a_record("A text/ü", 2), b'{ "id" : 7 , "number":3}', a_record("gone", 4)])
    await write(store, [a_record(upper, 9)])
    await remove(store, "gone")
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    live = [
        StoredRecord(upper.lower(), upper, 2, 5, a_record(upper, 9), at),
        StoredRecord("A text/ü", "A text/ü", 1, 2, a_record("A text/ü", 2), at),
        StoredRecord("\x017", "7", 1, 3, b'{ "id" : 7 , "number":3}', at),
    ]
    assert await all_of(reader) == {one.key: one for one in live}
    found = await reader.get([*(one.key for one in live), "gone", "unknown"])
    newest: Any = await store_client.xrevrange(KEYS.events, count=1)
    last = newest[0][0].decode()
    assert found.as_of == AsOf(last, 6)
    removed = StoredRecord("gone", "gone", 2, 6, b"", at, removed=True)
    assert found.records == {one.key: one for one in (*live, removed)}
    assert found.generation == (await begun(store)).generation


async def test_a_feed_that_was_never_read_has_no_records(store_client: Redis) -> None:
    """Law: without state, snapshots and stream a scan ends with its first chunk, and a look-up finds nothing."""
    reader = RecordReader(store_client, KEYS)
    chunk = await reader.scan()
    assert (list(chunk.records), chunk.next, chunk.as_of, chunk.generation) == ([], None, AsOf("0-0", 0), "")
    assert (await reader.get(["a"])).records == {}
    with pytest.raises(ValueError, match="at most 100"):
        await reader.get(["a"] * (LOOKED_UP + 1))


@pytest.mark.parametrize("seed", range(6))
async def test_each_record_that_stays_is_seen(store_client: Redis, seed: int) -> None:
    """Law: a record that is live during the whole scan is given out, while the hash grows and shrinks under it."""
    rng, reader = Random(seed), RecordReader(store_client, KEYS)
    await begun(opened(store_client))
    there: list[str] = []
    drawn = iter(range(1_000_000))

    async def add(number: int) -> list[str]:
        fresh = [f"r{next(drawn)}" for _ in range(number)]
        for at in range(0, number, 1000):
            some = fresh[at : at + 1000]
            stored = {name_of(key): CODEC.encode(key, Snapshot(1, 1, a_record(key, 1))) for key in some}
            await store_client.hset(KEYS.snapshots, mapping=cast("Any", stored))
        return fresh

    staying = set(await add(rng.choice([50, 700])))
    seen: set[str] = set()
    async for chunk in scanned(reader, count=rng.choice([7, 60])):
        assert not chunk.restarted
        seen |= {record.key for record in chunk.records}
        if rng.random() < 0.3:
            there += await add(rng.choice([10, 300, 3000]))
        elif there and rng.random() < 0.5:
            rng.shuffle(there)
            most = rng.randrange(len(there))
            gone, there = there[: most + 1], there[most + 1 :]
            await store_client.hdel(KEYS.snapshots, *gone)
    assert staying - seen == set()


async def test_a_chunk_and_its_moment_are_one(store_client: Redis) -> None:
    """Law: of each record given out, events up to its revision are not after ``as_of``, and all later ones are."""
    store, reader = opened(store_client), RecordReader(store_client, KEYS)
    keys = [f"r{number}" for number in range(40)]
    await write(store, [a_record(key, 0) for key in keys])
    rounds, given = 0, list[tuple[AsOf, StoredRecord]]()

    async def writes() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            some = Random(rounds).sample(keys, 15)
            await write(store, [a_record(key, rounds) for key in some[3:]])
            await remove(store, *some[:3])

    writing = asyncio.create_task(writes())
    while rounds < 40:
        async for chunk in scanned(reader, count=3):
            given += [(chunk.as_of, record) for record in chunk.records]
        given += [(found.as_of, one) for found in [await reader.get(keys[:3])] for one in found.records.values()]
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    published: dict[str, dict[int, tuple[EntryId, int]]] = defaultdict(dict)
    for name, fields in cast("list[tuple[bytes, dict[bytes, bytes]]]", await store_client.xrange(KEYS.events)):
        event = json.loads(fields[b"data"])
        published[event["subject"]][event["data"]["revision"]] = EntryId.parse(name), int(event["sequence"])
    assert len({record.revision for _, record in given}) > 10
    for as_of, record in given:
        entry, sequence = EntryId.parse(as_of.entry), as_of.sequence
        before = {revision for revision, (id_, _) in published[record.key].items() if id_ <= entry}
        assert before == set(range(1, record.revision + 1))
        assert before == {revision for revision, (_, number) in published[record.key].items() if number <= sequence}


async def test_after_a_restart_of_the_server_a_scan_begins_again(
    single_kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Law: a cursor of a former process of the server is not used: with it, a scan would miss records."""
    directory, keys = tmp_path_factory.mktemp("s"), [f"r{number}" for number in range(20_000)]
    with running(cast("Kind", single_kind), directory) as server:
        async with commands(server.url) as client:
            await begun(opened(client))
            stored = {name_of(key): CODEC.encode(key, Snapshot(1, 1, a_record(key, 1))) for key in keys}
            await client.hset(KEYS.snapshots, mapping=cast("Any", stored))
            chunk = await RecordReader(client, KEYS).scan(count=5000)
            position = chunk.next
    assert position is not None
    with running(cast("Kind", single_kind), directory) as server:
        async with commands(server.url) as client:
            reader, seen = RecordReader(client, KEYS), set[str]()
            chunk = await reader.scan(position, count=5000)
            assert chunk.restarted
            seen |= {record.key for record in chunk.records}
            while chunk.next is not None:
                chunk = await reader.scan(chunk.next, count=5000)
                assert not chunk.restarted
                seen |= {record.key for record in chunk.records}
    assert seen == set(keys)


Turn = Callable[[Redis], Any]


@pytest.mark.parametrize(
    "turn",
    [
        pytest.param(lambda client: client.hset(KEYS.state, "generation", "other"), id="another generation"),
        pytest.param(lambda client: client.hset(KEYS.state, FORMS, "2 after 1"), id="other forms"),
        pytest.param(lambda client: client.hset(KEYS.state, "sequence", "3"), id="gone back"),
        pytest.param(lambda client: client.delete(KEYS.state), id="lost"),
    ],
)
async def test_a_scan_begins_again_where_its_cursor_means_nothing(store_client: Redis, turn: Turn) -> None:
    """Law: of another generation, other forms or an earlier moment of the store a scan gives out all records again."""
    store, reader = opened(store_client), RecordReader(store_client, KEYS)
    keys = {f"r{number}" for number in range(600)}
    await write(store, [a_record(key, 1) for key in sorted(keys)])
    chunk = await reader.scan(count=10)
    assert chunk.next is not None
    assert not (await reader.scan(chunk.next, count=10)).restarted
    await turn(store_client)
    again = await reader.scan(chunk.next, count=10)
    assert again.restarted
    first = {record.key for record in again.records}
    assert first >= {record.key for record in (await reader.scan(count=10)).records} != set()


async def test_no_scan_during_a_conversion(store_client: Redis) -> None:
    """Law: while snapshots change their fields a scan raises; a look-up finds the record in either of its fields."""
    store, reader = opened(store_client), RecordReader(store_client, KEYS)
    key = "0b8e7c5e-9d4a-4d9f-8a55-6c1f3f0e2a11"
    await write(store, [a_record(key, 1)])
    former = SnapshotCodec(form=1).encode(key, Snapshot(1, 1, a_record(key, 1)))
    position = ScanPosition(0, "r", "g", "1", AsOf("0-0", 0))
    for forms in ("1 2", "1", "2 after 1"):
        await store_client.hset(KEYS.state, cast("Any", FORMS), forms)
        await store_client.hset(KEYS.snapshots, key, cast("Any", former))
        await store_client.hdel(KEYS.snapshots, cast("Any", name_of(key)))
        found = await reader.get([key])
        assert found.records == {key: StoredRecord(key, key, 1, 1, a_record(key, 1))}
        if forms == "1 2":
            for at in (None, position):
                with pytest.raises(Converting, match="being converted"):
                    await reader.scan(at)
        else:
            assert list((await reader.scan()).records) == list(found.records.values())
    second = {name_of(key): CODEC.encode(key, Snapshot(2, 2, b"{}"))}
    await store_client.hset(KEYS.snapshots, mapping=cast("Any", second))
    assert (await reader.get([key])).records[key].revision == 2


async def test_unreadable_snapshots_are_passed_over(store_client: Redis) -> None:
    """Law: they are counted, one is logged, without content; a look-up says why; all others are given out."""
    store, reader = opened(store_client), RecordReader(store_client, KEYS)
    await write(store, [unavailability(number) for number in range(SAMPLES)])
    await write(store, [a_record(key, 1) for key in ("a", "b", "c", "d", "good")])
    damaged: dict[bytes, bytes] = {
        b"a": b"",
        b"b": b"\x10\x01\x01secret",
        b"c": b"\x06\x01\x01\x09secret",
        b"d": b"\x00\x01\x01{secret",
        b"\xff\xfe": b"\x10secret",
    }
    await store_client.hset(KEYS.snapshots, mapping=cast("Any", damaged))
    with capture_logs() as logs:
        assert set(await all_of(reader)) >= {"good"}
        assert len(await all_of(reader)) == SAMPLES + 1
    assert [(one["event"], one["feed"]) for one in logs] == [("snapshot unreadable", KEYS.feed)]
    assert "secret" not in str(logs)
    assert reader.unreadable == 2 * len(damaged)
    found = (await reader.get(["a", "b", "c", "d"])).records
    assert all(one.unreadable and one.raw == b"" for one in found.values())
    assert found["c"].unreadable == "compression dictionary 9 is unknown"


async def test_the_dictionaries_are_those_of_the_moment(store_client: Redis) -> None:
    """Law: a chunk is readable although the dictionary that it needs is replaced before it is gone through."""
    store, reader = opened(store_client), RecordReader(store_client, KEYS)
    raws = [unavailability(number) for number in range(2 * SAMPLES)]
    await write(store, raws[:SAMPLES])
    await write(store, raws[SAMPLES:])
    assert await store_client.hlen(KEYS.dictionaries) == 1
    chunk = await reader.scan(count=1000)
    await store_client.delete(KEYS.dictionaries)
    assert sorted(record.raw for record in chunk.records) == sorted(raws)


async def test_large_records_are_read_a_few_at_a_time(store_client: Redis) -> None:
    """Law: a chunk holds about a mebibyte and one step of the scan; records are unpacked one by one."""
    store, reader, size = opened(store_client), RecordReader(store_client, KEYS), 256 * 1024
    state = await begun(store)
    for number in range(20):
        raw = b'{"id":"r%d","x":"%b"}' % (number, Random(number).randbytes(size).hex().encode())
        await store.commit(Commit(state.generation, state.sequence, {f"r{number}": Snapshot(1, 0, raw)}))
    chunks = [len(list(chunk.records)) async for chunk in scanned(reader, count=1000)]
    assert sum(chunks) >= 20
    assert max(chunks) < 20  # one step of the scan may hold many: that is the luck of the server's hash
    for number in range(20):
        raw = b'{"id":"r%d","x":"%b"}' % (number, b" " * 2 * 1024 * 1024)
        await store.commit(Commit(state.generation, state.sequence, {f"r{number}": Snapshot(1, 0, raw)}))
    tracemalloc.start()
    seen = [record.key async for chunk in scanned(reader, count=1000) for record in chunk.records]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(set(seen)) == 20
    assert peak < 20 * 1024 * 1024


async def test_the_daemons_user_may_read_records(single_kind: str, tmp_path: Path) -> None:
    """Law: the script needs no permission that ``deploy/redis`` does not grant, also where memory is full."""
    with running_with_acl(cast("Kind", single_kind), tmp_path) as server:
        async with commands(server.url) as client, commands(server.admin) as admin:
            await write(opened(client), [a_record("a", 1)])
            await admin.config_set("maxmemory", "1")
            reader = RecordReader(client, KEYS)
            assert set(await all_of(reader)) == {"a"} == set((await reader.get(["a"])).records)


POSITIONS = st.builds(
    ScanPosition,
    st.integers(0, 2**64 - 1),
    st.text("0123456789abcdef", min_size=40, max_size=40),
    st.text("0123456789abcdef", min_size=16, max_size=16),
    st.sampled_from(["1", "2 after 1", "2"]),
    st.builds(
        AsOf, st.builds(lambda ms, n: f"{ms}-{n}", st.integers(0, 2**64 - 1), st.integers(0, 9)), st.integers(0, 2**53)
    ),
)


@given(POSITIONS)
def test_a_position_has_a_text(position: ScanPosition) -> None:
    """Law: the text of a position needs no escape in a URL, and is the position again."""
    text = str(position)
    assert text.replace("-", "").replace("_", "").isalnum()
    assert ScanPosition.parse(text) == position


@given(st.one_of(st.text(), st.binary().map(lambda raw: raw.hex()), st.just("A" * 2000)))
def test_other_texts_are_no_positions(text: str) -> None:
    """Law: whatever a client sends is refused in words, and nothing else is raised."""
    with pytest.raises(ValueError, match="not the position of a scan"):
        ScanPosition.parse(text)
