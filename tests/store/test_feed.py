"""The lease, the snapshots and the commit of one feed: one suite over the simulated store, Valkey and Redis."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Any, cast

import msgspec
import pytest
from opentelemetry.trace import SpanKind, StatusCode
from redis.asyncio import Redis

from poller.changes.diff import Snapshot
from poller.changes.events import Cause, EventFrame
from poller.changes.full_readings import HeldVersion
from poller.changes.plan import Commit, PublishRules, SeenKeys, SubstreamSnapshot, packed, plan
from poller.changes.records import Rejected, record_reader
from poller.clock import Clock, moment_of, rfc3339
from poller.errors import Fenced, Stale, StoreError, StoreRefused
from poller.redis.client import commands
from poller.redis.cluster import ClusterClient
from poller.redis.single import packed_arguments
from poller.store.feed import (
    LISTED,
    FeedScripts,
    FeedStore,
    MissingRecords,
    PackedCommit,
    RandomSample,
    named_qualifications,
    rejected_digest,
)
from poller.store.feed_state import BACKWARDS, DELTA_TOKEN, HELD_VERSIONS, SECOND_LOOK, FeedState
from poller.store.keys import FEED_KEYS, FeedKeys
from poller.store.lease import HeldElsewhere
from poller.store.snapshots import SAMPLES, UNPACKED, SnapshotCodec
from poller.telemetry import tracing
from tests.harness.clock import FakeClock, StubClock
from tests.harness.waiting import patience
from tests.proxy import proxied
from tests.store.records import unavailability
from tests.stores import flushed, with_options
from tests.telemetry.recording import parent, recorded, told

KEYS = FeedKeys.of("poller", "acme/employmentUnavailabilities")
FRAME = EventFrame(
    feed="acme/employmentUnavailabilities",
    generation="g",
    source="https://api.example.org/v1/employmentUnavailabilities",
    type_stem="org.example.api.employmentUnavailability",
    cause=Cause.DELTA,
)
LISTING = SubstreamSnapshot(tried=1, read=1, held=packed(["k"]), validators={"If-None-Match": '"1"'})
read = record_reader("id")

Open = Callable[[str], FeedStore]


@pytest.fixture
def opened(store_client: Redis) -> Open:
    """Opens the feed's store for a process, by its nonce."""
    return opened_by(store_client)


async def granted() -> bool:
    return True


def opened_by(store_client: Redis, clock: Clock | None = None, **more: Any) -> Open:
    scripts = FeedScripts(store_client)
    generations = (f"{number:02x}" if number < 0x100 else f"{number:08x}" for number in itertools.count())

    def of(nonce: str) -> FeedStore:
        return FeedStore(
            store_client,
            scripts,
            KEYS,
            nonce=nonce,
            lease=timedelta(seconds=60),
            clock=clock or StubClock(now=lambda: moment_of(1_000), draws=generations),
            **more,
        )

    return of


async def begun(store: FeedStore) -> FeedState:
    state = await store.open_round()
    assert isinstance(state, FeedState)
    return msgspec.structs.replace(state, now_ms=0)  # the server's clock moves on between two rounds


async def write(store: FeedStore, records: list[bytes], state: FeedState | None = None) -> Commit:
    """Plan these records on what the store holds (or on a given state) and commit them."""
    state = state or await begun(store)
    taken = [read(raw) for raw in records]
    known = await store.known([record.key for record in taken if not isinstance(record, Rejected)])
    commit, _ = plan(
        taken,
        known,
        frame=FRAME,
        generation=state.generation,
        sequence=state.sequence,
        recorded="2026-01-02T03:04:05.678Z",
        rules=PublishRules(),
    )
    await store.commit(commit)
    return commit


async def planned_on(store: FeedStore, raws: list[bytes]) -> Commit:
    """These new records as the next commit."""
    state = await begun(store)
    commit, _ = plan(
        [read(raw) for raw in raws],
        {},
        frame=FRAME,
        generation=state.generation,
        sequence=state.sequence,
        recorded="2026-01-02T03:04:05.678Z",
        rules=PublishRules(),
    )
    return commit


async def entries(client: Redis, key: str) -> list[dict[bytes, bytes]]:
    found = cast("list[tuple[bytes, dict[bytes, bytes]]]", await client.xrange(key))
    return [fields for _, fields in found]


async def events(client: Redis) -> list[dict[str, object]]:
    return [json.loads(fields[b"data"]) for fields in await entries(client, KEYS.events)]


async def everything(client: Redis) -> dict[str, object]:
    """All that the feed holds; shows that a refused commit changed nothing."""
    return {
        "state": await client.hgetall(KEYS.state),
        "snapshots": await client.hgetall(KEYS.snapshots),
        "events": await client.xrange(KEYS.events),
        "quarantine": await client.xrange(KEYS.quarantine),
        "dictionaries": await client.hgetall(KEYS.dictionaries),
        "qualifications": await client.zrange(KEYS.qualifications, 0, -1),
    }


async def test_a_new_feed_starts_empty_and_keeps_its_generation(opened: Open) -> None:
    """Law: the generation is drawn once, when the state is created."""
    first = await begun(opened("a"))
    assert (first.sequence, first.delta_token) == (0, None)
    assert await begun(opened("a")) == first


async def test_large_records_are_not_in_memory_together(opened: Open) -> None:
    """Law: a reading of snapshots unpacks a bounded number of bytes; the rest is unpacked when it is asked for."""
    store, size = opened("a"), 4 * 1024 * 1024
    state = await begun(store)
    large = {f"r{number}": b'{"id":"r%d","x":"%b"}' % (number, b" " * size) for number in range(14)}
    for key, raw in large.items():
        await store.commit(Commit(state.generation, state.sequence, {key: Snapshot(1, 0, raw)}))
    for reading in (lambda: store.known([*large, "other"]), lambda: store.absent(SeenKeys(), most=100)):
        tracemalloc.start()
        found = await reading()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < UNPACKED + 3 * size
        known = found.some if isinstance(found, MissingRecords) else found
        assert (sorted(known), "other" in known) == (sorted(large), False)
        assert all(known[key] == Snapshot(1, 0, raw) for key, raw in large.items())


async def test_a_large_snapshot_that_cannot_be_read_is_marked_as_such(opened: Open, store_client: Redis) -> None:
    """Law: what is unpacked later is quarantined if it cannot be read, as what is unpacked at once."""
    store, size = opened("a"), UNPACKED // 2
    state = await begun(store)
    for key in "abc":
        await store.commit(Commit(state.generation, state.sequence, {key: Snapshot(1, 0, b" " * size)}))
    await store_client.hset(KEYS.snapshots, "c", b"\x02\x01\x00 no frame")
    known = await store.known(["a", "b", "c"])
    assert [bool(known[key].unreadable) for key in "abc"] == [False, False, True]
    absent = await store.absent(SeenKeys(), most=100)
    assert sorted(snapshot.unreadable.partition(":")[0] for snapshot in absent.some.values()) == [
        *["not JSON"] * 2,
        "not a snapshot",
    ]


async def test_what_is_held_back_is_written_and_goes_with_the_commit(opened: Open, store_client: Redis) -> None:
    """Law: held versions are written and removed with their commit, survive the process, and go with a reset."""
    store = opened("a")
    state = await begun(store)
    notes = {"a": HeldVersion(b"\x00" * 16, 7), "\x01b": HeldVersion(b"\xff" * 16)}
    marks = {HELD_VERSIONS: "2", SECOND_LOOK: "9", BACKWARDS: "3"}
    await store.commit(Commit(state.generation, state.sequence, marks=marks, held=notes))
    again = await begun(opened("a"))
    assert (again.held_versions, again.second_look, again.backwards) == (2, 9, 3)
    assert await opened("a").held_versions() == notes
    await store.commit(Commit(state.generation, state.sequence, held={"a": None, "\x01b": HeldVersion(b"x", 8)}))
    assert await store.held_versions() == {"\x01b": HeldVersion(b"x", 8)}
    with pytest.raises(Stale):
        await store.commit(Commit(state.generation, state.sequence + 1, held={"c": HeldVersion(b"y")}))
    await store_client.hset(KEYS.held_versions, "d", b"\xc1")  # as another version may have written it
    assert await store.held_versions() == {"\x01b": HeldVersion(b"x", 8), "d": HeldVersion(b"")}
    await store_client.hset(KEYS.state, "anew", "1")
    assert (await begun(store)).held_versions == 0
    assert await store.held_versions() == {}


async def test_a_round_begins_by_the_servers_clock(opened: Open) -> None:
    """Law: the start of a round brings the server's time, with and without a state."""
    store = opened("a")
    for _ in range(2):
        before = time.time_ns() // 1_000_000
        state = await store.open_round()
        assert isinstance(state, FeedState)
        assert before <= state.now_ms <= time.time_ns() // 1_000_000


async def test_a_commit_is_all_there(opened: Open, store_client: Redis) -> None:
    """Law: snapshots, events, quarantine, qualifications and checkpoint of one commit are written together."""
    store = opened("a")
    state = await begun(store)
    frame = [read(unavailability(number)) for number in range(3)]
    commit, _ = plan(
        [*frame, Rejected(b"[1]", "not an object")],
        {},
        frame=FRAME,
        generation=state.generation,
        sequence=0,
        recorded="2026-01-02T03:04:05.678Z",
        rules=PublishRules(),
    )
    whole = Commit(
        commit.generation,
        commit.sequence,
        commit.snapshots,
        commit.events,
        commit.rejected,
        ("0aa7d5cc-3d2b-4f5e-8a73-0d7d5a1b1b5f",),
        {DELTA_TOKEN: "t1"},
        {"q1": LISTING},
        commit.digest,
    )
    await store.commit(whole)
    after = await begun(store)
    assert (after.sequence, after.delta_token) == (3, "t1")
    assert [event["sequence"] for event in await events(store_client)] == [f"{number:020d}" for number in (1, 2, 3)]
    assert await store.known(list(commit.snapshots)) == dict(commit.snapshots)
    assert await entries(store_client, KEYS.quarantine) == [
        {b"raw": b"[1]", b"reason": b"not an object", b"digest": rejected_digest(b"[1]")}
    ]
    assert await named_qualifications(store_client, [KEYS]) == {"0aa7d5cc-3d2b-4f5e-8a73-0d7d5a1b1b5f": 1_000}
    assert await store.listings() == {"q1": LISTING}


async def test_the_qualifications_of_several_feeds_come_with_their_latest_moment(store_client: Redis) -> None:
    """Law: of a qualification that several feeds have named, the latest naming counts, from the given moment on."""
    feeds = [FeedKeys.of("poller", f"acme/f{number}") for number in range(3)]
    await store_client.zadd(feeds[0].qualifications, {"a": 1_000, "b": 3_000})
    await store_client.zadd(feeds[2].qualifications, {"a": 2_000, "c": 500})
    assert await named_qualifications(store_client, feeds, 1_000) == {"a": 2_000, "b": 3_000}
    assert await named_qualifications(store_client, []) == {}


async def test_the_same_commit_again_is_known(opened: Open, store_client: Redis) -> None:
    """Law: a commit whose reply was lost can be sent again, and is written once."""
    store = opened("a")
    commit = await write(store, [unavailability(number) for number in range(5)])
    before = await everything(store_client)
    await store.commit(commit)
    assert await everything(store_client) == before


async def test_a_commit_without_events_is_known_again_too(opened: Open, store_client: Redis) -> None:
    """Law: a silent baseline, its dictionary and its quarantine are written once, though the sequence stays."""
    store = opened("a")
    state = await begun(store)
    records = [read(unavailability(number)) for number in range(SAMPLES)]
    commit, _ = plan(
        [*records, Rejected(b"[1]", "not an object")],
        {},
        frame=FRAME,
        generation=state.generation,
        sequence=0,
        recorded="2026-01-02T03:04:05.678Z",
        rules=PublishRules(silent=True),
    )
    await store.commit(commit)
    before = await everything(store_client)
    again = opened("a")  # as the first try, it does not know the dictionary
    await again.commit(commit)
    assert await everything(store_client) == before
    assert await events(store_client) == []


async def test_another_commit_on_the_same_state_is_stale(opened: Open, store_client: Redis) -> None:
    """Law: of two commits planned on one state only one is written; the other writes nothing."""
    store = opened("a")
    state = await begun(store)
    await write(store, [unavailability(1)], state)
    before = await everything(store_client)
    with pytest.raises(Stale):
        await write(store, [unavailability(2)], state)
    assert await everything(store_client) == before


async def test_a_process_without_the_lease_cannot_write(opened: Open, store_client: Redis) -> None:
    """Law: a suspended process whose lease was taken over is refused and writes nothing, even if its state fits."""
    paused, successor = opened("paused"), opened("successor")
    state = await begun(paused)
    await store_client.delete(KEYS.lease)  # as when it runs out
    assert await begun(successor) == state
    before = await everything(store_client)
    with pytest.raises(Fenced):
        await write(paused, [unavailability(1)], state)
    assert await everything(store_client) == before
    assert not paused.held


async def test_a_lost_generation_is_stale(opened: Open, store_client: Redis) -> None:
    """Law: a round that began before a reset writes nothing to the new state."""
    store = opened("a")
    state = await begun(store)
    await flushed(store_client)
    await begun(store)
    with pytest.raises(Stale):
        await write(store, [unavailability(1)], state)
    assert await events(store_client) == []


async def test_one_process_has_the_lease_at_a_time(opened: Open) -> None:
    """Law: one process has the lease; others learn how long it lasts, and can take it once it is released."""
    first, second = opened("first"), opened("second")
    await begun(first)
    refused = await second.open_round()
    assert isinstance(refused, HeldElsewhere)
    assert timedelta() < refused.remaining <= timedelta(seconds=60)
    assert not await second.lease.renew()
    await second.release()  # another process's lease stays
    assert isinstance(await second.open_round(), HeldElsewhere)
    assert await first.lease.renew()
    await first.release()
    await begun(second)


async def test_a_round_does_not_wait_for_a_lease_from_before_the_clock_was_set_back(
    opened: Open, store_client: Redis
) -> None:
    """Law: a lease of hours dates from before the server's clock was set back, and ends after one term."""
    await store_client.set(KEYS.lease, "gone", ex=3600)
    refused = await opened("a").open_round()
    assert isinstance(refused, HeldElsewhere)
    assert refused.remaining <= timedelta(seconds=60)


async def test_a_dictionary_is_written_with_the_first_snapshots_that_need_it(opened: Open, store_client: Redis) -> None:
    """Law: another process reads the snapshots from before and after the dictionary."""
    store = opened("a")
    await write(store, [unavailability(1)])
    records = [unavailability(number) for number in range(2, SAMPLES + 2)]
    commit = await write(store, records)
    assert await store_client.hlen(KEYS.dictionaries) == 1
    await store.release()
    other = opened("b")
    await begun(other)
    known = await other.known(list(commit.snapshots))
    assert {snapshot.raw for snapshot in known.values()} == set(records)


async def test_what_another_codec_has_packed_is_packed_again(opened: Open, store_client: Redis) -> None:
    """Law: snapshots are written with a dictionary of their feed; before there is one, nothing is packed ahead."""
    raws = [unavailability(number) for number in range(SAMPLES)]
    store = opened("a")
    planned = await planned_on(store, raws)
    await store.known(["any"])
    assert store.pack(planned) is None
    foreign = SnapshotCodec({1: b"".join(reversed(raws))})
    wrong = packed_arguments([b"name", b"value"] * len(raws) + list(planned.events))
    packed = PackedCommit(foreign, foreign.encode_all(planned.snapshots), "3", wrong)
    await store.write(planned, packed)
    assert store.pack(planned) is not None
    known = await opened("a").known(list(planned.snapshots))
    assert {one.raw for one in known.values()} == set(raws)


async def test_what_is_packed_ahead_is_written_as_any_other_commit(opened: Open, store_client: Redis) -> None:
    """Law: the same snapshots and events, and with them all else that the commit holds."""
    store = opened("a")
    await write(store, [unavailability(number) for number in range(SAMPLES)])
    commit = await planned_on(store, [unavailability(number) for number in range(SAMPLES, 2 * SAMPLES)])
    commit = msgspec.structs.replace(
        commit, rejected=(Rejected(b"{", "no JSON"),), marks={"mark": "it"}, qualifications=("q",)
    )
    packed = store.pack(commit)
    assert packed is not None
    if not isinstance(store_client, ClusterClient):  # which looks at each command first
        assert packed.arguments is not None
        assert packed.arguments.count == 3 * SAMPLES
    await store.write(commit, packed)
    assert [fields[b"data"] for fields in await entries(store_client, KEYS.events)][SAMPLES:] == list(commit.events)
    known = await opened("a").known(list(commit.snapshots))
    assert {key: one.raw for key, one in known.items()} == {key: one.raw for key, one in commit.snapshots.items()}
    assert await store_client.hget(KEYS.state, "mark") == b"it"
    assert [fields[b"reason"] for fields in await entries(store_client, KEYS.quarantine)] == [b"no JSON"]
    assert await store_client.zrange(KEYS.qualifications, 0, -1) == [b"q"]


async def test_what_was_packed_for_an_earlier_form_is_packed_again(opened: Open, store_client: Redis) -> None:
    """Law: snapshots have the names of the feed's form; a record would stand in the hash twice."""
    store = opened("a")
    await write(store, [unavailability(number) for number in range(SAMPLES)])
    commit = await planned_on(store, [unavailability(SAMPLES)])
    packed = store.pack(commit)
    assert packed is not None
    wrong = packed_arguments([b"name", *packed.stored, *commit.events])
    await store.write(commit, msgspec.structs.replace(packed, forms="2", arguments=wrong))
    assert await store_client.hget(KEYS.snapshots, b"name") is None
    assert len(await opened("a").known(list(commit.snapshots))) == 1


class LateAnswer:
    """A client whose first answer about dictionaries comes late: once the test lets it."""

    def __init__(self, client: Redis) -> None:
        self.asked, self.let = asyncio.Event(), asyncio.Event()
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def hgetall(self, key: str) -> dict[bytes, bytes]:
        answer = cast("dict[bytes, bytes]", await self._client.hgetall(key))
        if not self.asked.is_set():
            self.asked.set()
            await self.let.wait()
        return answer


class CountedReads:
    """A client that counts how often dictionaries are read."""

    def __init__(self, client: Redis) -> None:
        self.count = 0
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def hgetall(self, key: str) -> dict[bytes, bytes]:
        self.count += key == KEYS.dictionaries
        return cast("dict[bytes, bytes]", await self._client.hgetall(key))


async def resting(client: CountedReads) -> FeedStore:
    """A feed that has a dictionary, after its first round."""
    store = opened_by(cast("Redis", client))("a")
    await write(store, [unavailability(number) for number in range(SAMPLES)])
    store.rest()
    assert client.count == 1
    return store


async def marked(store: FeedStore, query: str) -> None:
    """A round that leaves a mark alone."""
    state = await begun(store)
    await store.commit(Commit(state.generation, state.sequence, marks={"query": query}))


async def test_a_feed_at_rest_has_no_dictionary(store_client: Redis) -> None:
    """Law: rounds without changes read none, and one with changes reads it once."""
    client = CountedReads(store_client)
    store = await resting(client)
    await marked(store, "needs none")
    store.rest()
    assert client.count == 1
    for number in range(2):
        commit = await write(store, [unavailability(SAMPLES + number)])
        assert (await store.known(list(commit.snapshots))).keys() == commit.snapshots.keys()
        store.rest()
        assert client.count == 2 + number
    assert len(await events(store_client)) == SAMPLES + 2


async def test_the_number_of_dictionaries_that_is_remembered_is_checked(store_client: Redis) -> None:
    """Law: a mark is refused if a dictionary was added behind the back of a feed at rest; the next round has it."""
    store = await resting(CountedReads(store_client))
    state = await begun(store)
    await store_client.hset(KEYS.dictionaries, "3", b"written by another")
    with pytest.raises(Stale):
        await store.commit(Commit(state.generation, state.sequence, marks={"query": "q"}))
    await marked(store, "after")
    assert await store_client.hget(KEYS.state, "query") == b"after"


async def test_the_number_of_dictionaries_goes_with_the_lease_and_the_generation(store_client: Redis) -> None:
    """Law: what others have added while the lease was theirs, or a flush has taken, is no reason to refuse a mark."""
    store = await resting(CountedReads(store_client))
    await store_client.set(KEYS.lease, "another's")
    assert isinstance(await store.open_round(), HeldElsewhere)
    await store_client.hset(KEYS.dictionaries, "2", b"written by another")
    await store_client.delete(KEYS.lease)
    await marked(store, "of the lease")
    store.rest()
    await flushed(store_client)
    await marked(store, "of the generation")
    assert await store_client.hget(KEYS.state, "query") == b"of the generation"


async def test_dictionaries_that_are_read_while_one_is_written_do_not_hide_it(
    opened: Open, store_client: Redis
) -> None:
    """Law: what was read before a commit with a dictionary and comes after it does not count; no commit is refused."""
    client = LateAnswer(store_client)
    store = opened_by(cast("Redis", client))("a")
    state = await begun(store)
    reading = asyncio.create_task(store.known(["any"]))
    await client.asked.wait()
    records = [read(unavailability(number)) for number in range(SAMPLES)]
    commit, _ = plan(
        records,
        {},
        frame=FRAME,
        generation=state.generation,
        sequence=0,
        recorded="2026-01-02T03:04:05.678Z",
        rules=PublishRules(),
    )
    await store.commit(commit)
    client.let.set()
    await reading
    await write(store, [unavailability(SAMPLES + number) for number in range(SAMPLES)])
    assert await store_client.hlen(KEYS.dictionaries) == 1


async def test_a_dictionary_that_another_process_wrote_is_never_replaced(opened: Open, store_client: Redis) -> None:
    """Law: a commit with a new dictionary is refused if another process has written one meanwhile."""
    first = opened("a")
    state = await begun(first)
    await first.known(["loads the dictionaries: none yet"])
    await store_client.hset(KEYS.dictionaries, "1", b"written by another")
    with pytest.raises(Stale):
        await write(first, [unavailability(number) for number in range(SAMPLES)], state)
    assert await store_client.hget(KEYS.dictionaries, "1") == b"written by another"
    commit = await write(first, [unavailability(number) for number in range(SAMPLES)])
    known = await opened("a").known(list(commit.snapshots))
    assert {one.raw for one in known.values()} == {unavailability(number) for number in range(SAMPLES)}


async def test_what_another_process_added_is_learnt_with_the_lease(opened: Open, store_client: Redis) -> None:
    """Law: a process that gets its lease back reads dictionaries that were added meanwhile."""
    first, second = opened("a"), opened("b")
    await write(first, [unavailability(0)])
    await store_client.delete(KEYS.lease)
    await write(second, [unavailability(number) for number in range(1, SAMPLES + 1)])
    assert isinstance(await first.open_round(), HeldElsewhere)
    await second.release()
    await write(first, [unavailability(number) for number in range(SAMPLES + 10)])
    assert len(await events(store_client)) == SAMPLES + 10


async def test_state_that_was_wiped_starts_anew_at_once(opened: Open, store_client: Redis) -> None:
    """Law: after FLUSHALL the next round starts from an empty state, and its first commit is written."""
    store = opened("a")
    await write(store, [unavailability(number) for number in range(SAMPLES)])
    await flushed(store_client)
    commit = await write(store, [unavailability(number) for number in range(SAMPLES)])
    await store.known(list(commit.snapshots))
    assert len(await events(store_client)) == SAMPLES


async def test_what_a_reading_did_not_hold_is_found(opened: Open) -> None:
    """Law: all live snapshots that a round did not see are counted, some returned, and tombstones skipped."""
    store = opened("a")
    commit = await write(store, [unavailability(number) for number in range(SAMPLES * 2)])
    state = await begun(store)
    keys = list(commit.snapshots)
    tombstone = Snapshot(2, state.sequence + 1, b"{}", removed=True)
    await store.commit(Commit(state.generation, state.sequence, {keys[0]: tombstone}))
    seen = set(keys[10:])
    absent = await store.absent(seen, most=100)
    assert (absent.live, absent.missing) == (SAMPLES * 2 - 1, 9)
    assert absent.some == {key: commit.snapshots[key] for key in keys[1:10]}
    assert absent.listed.items() <= {key: commit.snapshots[key] for key in seen}.items()
    assert len(absent.listed) == LISTED
    nothing_seen = await store.absent(set(), most=5)
    assert (len(nothing_seen.some), nothing_seen.listed) == (5, {})


async def test_page_digests_go_with_the_first_snapshot_that_is_written(opened: Open) -> None:
    """Law: digests of pages are stored with marks, stay with marks, and are deleted by any snapshot."""
    store = opened("a")
    assert await store.page_digests() is None
    commit = await write(store, [unavailability(1)])
    state = await begun(store)
    await store.commit(Commit(state.generation, state.sequence, marks={"read_at": "x"}, page_digests=b"digests"))
    assert await store.page_digests() == b"digests"
    await store.commit(Commit(state.generation, state.sequence, marks={"read_at": "y"}))
    assert await store.page_digests() == b"digests"
    missing = {key: msgspec.structs.replace(one, missing=True) for key, one in commit.snapshots.items()}
    await store.commit(Commit(state.generation, state.sequence, missing))
    assert await store.page_digests() is None


async def test_subjects_of_recent_events_of_one_cause(opened: Open, store_client: Redis) -> None:
    """Law: events that are old enough, of another cause, or of a foreign client are left out."""
    store = opened("a")
    await write(store, [unavailability(number) for number in range(SAMPLES)])
    found = [str(event["subject"]) for event in await events(store_client)]
    await store_client.xadd(KEYS.events, {"data": b"not JSON"})
    await store_client.xadd(KEYS.events, {"other": b"{}"})
    last = cast("list[tuple[bytes, dict[bytes, bytes]]]", await store_client.xrevrange(KEYS.events, count=1))[0][0]
    now = int(last.split(b"-")[0])
    at_once = opened_by(store_client, StubClock(now=lambda: moment_of(now)))("a")
    assert await at_once.subjects_since(timedelta(seconds=30), cause="delta") == frozenset(found)
    assert await at_once.subjects_since(timedelta(seconds=30), cause="full") == frozenset()
    later = opened_by(store_client, StubClock(now=lambda: moment_of(now + 60_000)))("a")
    assert await later.subjects_since(timedelta(seconds=59), cause="delta") == frozenset()
    assert await later.subjects_since(timedelta(hours=1), cause="delta") == frozenset(found)


async def test_after_the_clock_was_set_back_events_are_as_old_as_they_say(store_client: Redis) -> None:
    """Law: entries go on with ids of the future, and are recent no longer than they say; those from before are not."""
    told = {"x": 7_200_000, "y": 7_201_000, "a": -9_000, "b": -1_000}  # the first two from before it was set back
    for number, (subject, ms) in enumerate(told.items()):
        event = {"subject": subject, "sequence": f"{number:020d}", "recordedtime": rfc3339(moment_of(10_000_000 + ms))}
        data = msgspec.json.encode({**event, "data": {"cause": "delta"}})
        await store_client.xadd(KEYS.events, {"data": data}, id=f"17200000-{number + 1}")
    store = opened_by(store_client, StubClock(now=lambda: moment_of(10_000_000)))("a")
    assert await store.subjects_since(timedelta(seconds=10)) == {"a", "b"}
    assert await store.subjects_since(timedelta(seconds=5)) == {"b"}
    slightly = opened_by(store_client, StubClock(now=lambda: moment_of(17_197_000)))("a")  # by three seconds
    assert await slightly.subjects_since(timedelta(seconds=10)) == {"x", "y", "a", "b"}


async def test_what_was_published_since_an_event_is_read_from_the_latest_on(opened: Open, store_client: Redis) -> None:
    """Law: records as they were received; foreign entries are left out."""
    store = opened("a")
    raws = [unavailability(number) for number in range(230)]
    await write(store, raws)
    await store_client.xadd(KEYS.events, {"data": b"not JSON"})
    found = [one async for one in store.published_since(10)]
    assert [one.raw for one in found] == list(reversed(raws[10:]))
    assert [one async for one in store.published_since(230)] == []


async def test_what_a_delta_has_brought_without_an_event_is_recent_too(store_client: Redis) -> None:
    """Law: it is known to this process for the time that is asked for, and the oldest of too many go."""
    clock = FakeClock()
    store = opened_by(store_client, clock)("a")
    store.deltas.add(["a", "\x017"])
    clock.move(5)
    store.deltas.add(["b"])
    assert await store.subjects_since(timedelta(seconds=6)) == {"a", "7", "b"}
    assert await store.subjects_since(timedelta(seconds=4)) == {"b"}
    store.deltas.add(map(str, range(100_000)))
    assert "b" not in await store.subjects_since(timedelta(seconds=6))


async def test_what_each_delta_brings_is_not_new_for_long(store_client: Redis) -> None:
    """Law: a record is repeated while each delta brings it, unchanged; it is recent all that time."""
    clock = FakeClock()
    store, seconds = opened_by(store_client, clock)("a"), timedelta(seconds=10)
    for keys in (["a", "b"], ["a", "b"], ["a"], ["a", "b"]):
        store.deltas.start("d")
        store.deltas.add(keys)
        store.deltas.finish("d")
        clock.move(6)
        assert "a" in await store.subjects_since(seconds)
    assert [store.deltas.is_repeated(key, seconds) for key in "abc"] == [True, False, False]
    assert await store.subjects_since(seconds, cause="delta") == {"b"}
    store.deltas.add(["a"], changed=True)
    assert not store.deltas.is_repeated("a", seconds)
    assert await store.subjects_since(seconds, cause="delta") == {"a", "b"}
    clock.move(60)
    await store.subjects_since(seconds)  # forgets what is older, but for the last delta
    store.deltas.start("d")
    store.deltas.add(["a"])
    assert store.deltas.is_repeated("a", seconds)


async def test_a_tombstone_keeps_its_revision(opened: Open) -> None:
    """Law: a removed record's snapshot is read back as removed, with its revision."""
    store = opened("a")
    state = await begun(store)
    tombstone = Snapshot(3, 9, unavailability(1), removed=True)
    await store.commit(Commit(state.generation, 0, {"k": tombstone}))
    assert await store.known(["k"]) == {"k": tombstone}


async def test_marks_are_set_and_deleted(opened: Open) -> None:
    """Law: a mark of None deletes its field; other fields stay."""
    store = opened("a")
    state = await begun(store)
    await store.commit(Commit(state.generation, 0, marks={DELTA_TOKEN: "t1", "query": "q"}))
    await store.commit(Commit(state.generation, 0, marks={DELTA_TOKEN: None}))
    after = await begun(store)
    assert (after.delta_token, after.query) == (None, "q")


async def test_something_that_is_not_a_snapshot_is_marked_as_such(opened: Open, store_client: Redis) -> None:
    """Law: an unreadable snapshot is returned as unreadable, so that its record is not taken for a new one."""
    store = opened("a")
    await begun(store)
    await store_client.hset(KEYS.snapshots, "k", b"\x02\x01\x01garbage")
    found = (await store.known(["k"]))["k"]
    assert (found.removed, "not a snapshot" in found.unreadable) == (False, True)


async def test_a_key_of_another_type_is_refused_for_good(opened: Open, store_client: Redis) -> None:
    """Law: a key of another type is refused without a retry."""
    await store_client.set(KEYS.state, "not a hash")
    with pytest.raises(StoreRefused):
        await opened("a").open_round()


async def test_a_write_that_is_refused_leaves_nothing_taken_for_published(opened: Open, store_client: Redis) -> None:
    """Law: if events cannot be written, neither are snapshots, so the next round publishes them."""
    store = opened("a")
    await store_client.set(KEYS.events, "not a stream")
    with pytest.raises(StoreRefused, match="is a string, not a stream"):
        await write(store, [unavailability(1)])
    assert not await store_client.exists(KEYS.snapshots)
    await store_client.delete(KEYS.events)
    await write(store, [unavailability(1)])
    assert len(await events(store_client)) == 1


async def test_a_missing_permission_loses_nothing(server: str) -> None:
    """Law: without the right to XADD no event and no snapshot is written; with it, all events are published."""
    admin = commands(server)
    limited = commands(with_options(server, username="limited", password="secret"))  # noqa: S106 -- a test's
    await admin.acl_setuser("limited", enabled=True, passwords=["+secret"], commands=["+@all", "-xadd"], keys=["*"])
    try:
        store = opened_by(limited)("a")
        with pytest.raises(StoreError):
            await write(store, [unavailability(1)])
        assert not await admin.exists(KEYS.snapshots)
        await admin.acl_setuser("limited", commands=["+xadd"])
        await write(store, [unavailability(1)])
        assert len(await events(admin)) == 1
    finally:
        await limited.aclose()
        await admin.acl_deluser("limited")
        await admin.aclose()


async def test_the_same_unusable_record_is_kept_once(opened: Open, store_client: Redis) -> None:
    """Law: a bad record that comes with every round is quarantined once and pushes no other out."""
    store = opened("a")
    state = await begun(store)
    for number in range(3):
        bad = (Rejected(b"[1]", "not an object"), Rejected(b"[%d]" % (number + 10), "not an object"))
        await store.commit(Commit(state.generation, 0, rejected=bad, digest=f"{number}"))
    assert [fields[b"raw"] for fields in await entries(store_client, KEYS.quarantine)] == [
        b"[1]",
        b"[10]",
        b"[11]",
        b"[12]",
    ]


@pytest.mark.parametrize(
    ("key", "field", "value"),
    [(KEYS.state, "sequence", "many"), (KEYS.state, b"\xff", "x"), (KEYS.dictionaries, "first", "x")],
)
async def test_what_cannot_be_read_is_an_error_of_the_store(
    opened: Open, store_client: Redis, key: str, field: str | bytes, value: str
) -> None:
    """Law: state that cannot be read raises a StoreError."""
    store = opened("a")
    await begun(store)
    await store_client.hset(key, field, value)
    with pytest.raises(StoreError, match="cannot read"):
        await write(store, [unavailability(1)])


async def test_a_mark_of_the_last_entry_that_cannot_be_read_stops_nothing(opened: Open, store_client: Redis) -> None:
    """Law: an unreadable mark of the last entry fails no commit; the next event replaces it."""
    store = opened("a")
    await write(store, [unavailability(1)])
    await store_client.hset(KEYS.state, "entry", "")
    await write(store, [unavailability(2)])
    last = (await store_client.xinfo_stream(KEYS.events))["last-generated-id"]
    assert await store_client.hget(KEYS.state, "entry") == last


async def test_a_cancelled_commit_is_finished(opened: Open, store_client: Redis) -> None:
    """Law: a cancelled commit is finished before the cancellation goes on."""
    store = opened("a")
    state = await begun(store)
    commit, _ = plan(
        [read(unavailability(1))],
        {},
        frame=FRAME,
        generation=state.generation,
        sequence=0,
        recorded="2026-01-02T03:04:05.678Z",
        rules=PublishRules(),
    )
    committing = asyncio.create_task(store.commit(commit))
    started = asyncio.Event()
    asyncio.get_running_loop().call_soon(started.set)
    await started.wait()
    committing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await committing
    assert len(await events(store_client)) == 1


@pytest.mark.parametrize("has_records", [False, True], ids=["marks", "snapshots"])
async def test_a_commit_without_events_whose_reply_is_lost_is_sent_again(server: str, has_records: bool) -> None:
    """Law: no repetition is taken for a commit on another state, though the first one has changed what is checked.

    The first commit of a feed names the forms of its snapshots; one with many of them has their dictionary.
    """
    async with proxied(server) as proxy:
        client = commands(proxy.url)
        try:
            await client.script_load(FeedScripts(client).commit.script)  # so that the reply is that of the commit
            store = opened_by(client, may_convert=granted)("a")
            state = await begun(store)
            if has_records:
                await store.commit(Commit(state.generation, state.sequence, marks={DELTA_TOKEN: "d0"}))
            records = [read(unavailability(number)) for number in range(SAMPLES if has_records else 0)]
            kept = {one.key: Snapshot(1, 0, one.raw) for one in records if not isinstance(one, Rejected)}
            lost = proxy.lose_reply(to=b"}:rejected")
            await store.commit(Commit(state.generation, state.sequence, kept, marks={DELTA_TOKEN: "d1"}))
            assert lost.struck.is_set()
            assert await client.hlen(KEYS.dictionaries) == has_records
            await store.commit(Commit(state.generation, state.sequence, marks={DELTA_TOKEN: "d2"}))
            state = await begun(store)
            assert (state.delta_token, len(await store.known(list(kept)))) == ("d2", len(kept))
        finally:
            await client.aclose()


async def test_a_round_that_is_cancelled_at_its_start_waits_for_the_answer(server: str) -> None:
    """Law: a release that follows cannot overtake the request for the lease, which would stay taken."""
    async with proxied(server) as proxy:
        client = commands(proxy.url)
        try:
            store = opened_by(client)("a")
            await store.open_round()  # the server knows the script now
            await store.release()
            held = proxy.hold_reply(to=b"EVALSHA")
            opening = asyncio.create_task(store.open_round())
            async with patience("the reply to arrive at the proxy"):
                await held.struck.wait()
            opening.cancel()
            _, waiting = await asyncio.wait({opening}, timeout=0.2)
            held.freed.set()
            with pytest.raises(asyncio.CancelledError):
                await opening
            await store.release()
            assert waiting
            assert not await client.exists(KEYS.lease)
        finally:
            await client.aclose()


async def test_all_keys_of_a_feed_share_one_hash_tag() -> None:
    """Law: all keys of a feed are in one slot, so that one script can use them on a cluster."""
    names = [getattr(KEYS, name) for name in FEED_KEYS]
    assert {name.partition("}")[0] for name in names} == {"poller:{acme/employmentUnavailabilities"}
    assert KEYS.events == "poller:{acme/employmentUnavailabilities}:events"


async def test_what_an_earlier_version_has_not_counted_is_counted_once(opened: Open, store_client: Redis) -> None:
    """Law: tombstones that an earlier version did not count are counted when the next round begins."""
    store = opened("a")
    await write(store, [unavailability(number) for number in range(5)])
    gone = await store.known([getattr(read(unavailability(number)), "key", "") for number in (1, 3)])
    removed = {key: msgspec.structs.replace(snapshot, removed=True) for key, snapshot in gone.items()}
    state = await begun(store)
    await store.commit(Commit(state.generation, state.sequence, removed))
    await store_client.hdel(KEYS.state, "tombstones")
    assert (await begun(opened("a"))).tombstones == 2
    assert await store_client.hget(KEYS.state, "tombstones") == b"2"


# Spans of commits.


async def test_a_commit_tells_what_it_writes_and_what_became_of_it(store_client: Redis) -> None:
    """Law: the span of a commit has its sizes and its result: written, repeated, stale or fenced.

    Records that an earlier version did not count are counted first, in a commit of their own.
    """
    ours = opened_by(store_client)("ours")
    with recorded() as spans, tracing.root("round") as span:
        state = await begun(ours)
        commit = await write(ours, [unavailability(1), unavailability(2)], state)
        await ours.commit(commit)
        with pytest.raises(Stale):
            await write(ours, [unavailability(3)], state)
        await ours.release()
        await begun(opened_by(store_client)("theirs"))
        with pytest.raises(Fenced):
            await ours.commit(commit)
    said = [told(one) for one in spans.named("commit")]
    assert [one["poller.commit.result"] for one in said] == ["ok", "already", "stale", "ok", "fenced"]
    assert {key: said[0][f"poller.commit.{key}"] for key in ("events", "snapshots", "rejected", "marks")} == {
        "events": 2,
        "snapshots": 2,
        "rejected": 0,
        "marks": 0,
    }
    codes = [one.status.status_code for one in spans.named("commit")]
    assert codes == [StatusCode.ERROR if one in {2, 4} else StatusCode.UNSET for one in range(5)]
    assert {(one.kind, parent(one)) for one in spans.named("commit")} == {
        (SpanKind.CLIENT, tracing.ids_of(span.carried)[1])
    }


def test_each_value_is_drawn_as_often_as_the_others() -> None:
    """Of many values, each is drawn about equally often; of few, all are."""
    clock, times = Clock(), Counter[int]()
    clock.random = Random(7)
    for _ in range(3000):
        sample = RandomSample[int](3, clock)
        for value in range(20):
            sample.offer(value)
        assert len(set(sample.drawn)) == 3
        times.update(sample.drawn)
    assert all(380 < times[value] < 520 for value in range(20)), times
    few = RandomSample[int](3, clock)
    few.offer(5)
    assert few.drawn == [5]
