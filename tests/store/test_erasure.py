"""Laws of :mod:`poller.store.erasure`: what goes, what stays, and what is refused that began before."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from redis.asyncio import Redis

from poller.changes.diff import Snapshot
from poller.changes.full_readings import HeldVersion
from poller.changes.plan import Commit, PublishRules, plan
from poller.clock import Clock
from poller.config.load import load
from poller.control.erasure import RecordErasure, RecordMatch, ranges_of
from poller.errors import ErasureSuperseded, ErasureUnknown, Stale
from poller.redis.client import commands
from poller.store.consumer_state import ConsumerScripts, ConsumerStore, Settlement
from poller.store.erasure import BegunErasure, FeedErasure, complete_tallies, erased_between, forget_tally
from poller.store.feed import FeedStore
from poller.store.feed_state import HELD_VERSIONS, TOMBSTONES
from poller.store.keys import ConsumerKeys
from poller.store.snapshots import SnapshotCodec, name_of
from poller.store.stream import EntryId
from tests.harness.waiting import patience
from tests.proxy import proxied
from tests.store.records import unavailability
from tests.store.test_feed import FRAME, KEYS, Open, begun, events, opened_by, read, write
from tests.store.test_snapshot_forms import Permission
from tests.store.test_snapshot_forms import opened as opened_in_form

PRIVATE = "quite private"
RAW = unavailability(1, reason=PRIVATE)
ID = str(json.loads(RAW)["id"])
OTHERS = [unavailability(number) for number in range(2, 6)]
OTHER = str(json.loads(OTHERS[0])["id"])
MATCH = RecordMatch(ID, "id")
PAIR = ConsumerKeys.of("poller", KEYS.feed, "s")


@pytest.fixture
def opened(store_client: Redis) -> Open:
    """Opens the feed's store for a process, by its nonce."""
    return opened_by(store_client)


def erasure(client: Redis) -> FeedErasure:
    return FeedErasure(client, KEYS, clock=Clock())


async def begin(client: Redis, match: RecordMatch = MATCH) -> BegunErasure:
    return await erasure(client).place_tombstone(match.keys, match.delivery_key)


async def erase(client: Redis, match: RecordMatch = MATCH) -> tuple[int, int, list[int]]:
    """Both parts at the snapshot and the stream: events, acknowledged deliveries, sequences."""
    place = (await begin(client, match)).place
    parts = [part async for part in erasure(client).erase_events(place, match.sequence)]
    sequences = [one for part in parts for one in part.sequences]
    return sum(part.events for part in parts), sum(part.acknowledged for part in parts), sequences


async def snapshot(store: FeedStore, key: str = ID) -> Snapshot:
    return (await store.known([key]))[key]


def kinds(published: list[dict[str, object]]) -> list[tuple[str, int, int]]:
    return [
        (
            str(one["type"]).split(".")[-2],
            int(str(one["sequence"])),
            cast("Mapping[str, Any]", one["data"])["revision"],
        )
        for one in published
    ]


async def test_a_record_leaves_a_tombstone_without_content(store_client: Redis, opened: Open) -> None:
    """Law: revision and order stay, nothing of the content; no part of the feed counts as lost, and counts fit."""
    store = opened("a")
    await write(store, [RAW, *OTHERS])
    assert (await begun(store)).tombstones == 0  # from now on they are counted by commits
    found = await begin(store_client)
    assert (found.snapshots, found.revision, found.number) == (1, 1, 1)
    state = await begun(store)
    assert (state.loss, state.sequence, state.kept_records, state.tombstones) == (None, 6, 5, 1)
    left = await snapshot(store)
    assert (left.revision, left.sequence, left.raw, left.removed) == (1, 6, b"", True)
    known = [json.loads(raw)["id"] for raw in OTHERS]
    assert (await store.absent({*known}, most=9, known=4)).missing == 0
    assert (await store.absent({*known[1:]}, most=9)).live == 4


async def test_a_record_that_comes_back_is_created_with_the_next_revision(store_client: Redis, opened: Open) -> None:
    """Law: also if it is as it was, and the digests of pages or a delta would call it known."""
    store = opened("a")
    await write(store, [RAW, OTHERS[0]])
    state = await begun(store)
    await store.commit(Commit(state.generation, state.sequence, page_digests=b"all pages"))
    assert await erase(store_client) == (1, 0, [1])
    assert await store.page_digests() is None
    assert await store.are_stored([ID, OTHER], [RAW, OTHERS[0]]) == [False, True]
    await write(store, [RAW, OTHERS[0]])
    assert kinds(await events(store_client)) == [("created", 2, 1), ("created", 4, 2)]
    assert await erased_between(store_client, KEYS.events, 0, 2) == [1]
    assert await erased_between(store_client, KEYS.events, 2, 4) == [3]


async def test_a_commit_that_was_planned_before_is_refused(store_client: Redis, opened: Open) -> None:
    """Law: it holds what was erased, so nothing of it is written, and sending it again changes nothing."""
    store = opened("a")
    await write(store, [RAW, *OTHERS])
    state, record = await begun(store), read(unavailability(1, reason="as private"))
    commit, _ = plan(
        [record],
        await store.known([ID]),
        frame=FRAME,
        generation=state.generation,
        sequence=state.sequence,
        recorded="2026-01-02T03:04:05.678Z",
        rules=PublishRules(),
    )
    await begin(store_client)
    for _ in range(2):
        with pytest.raises(Stale):
            await store.commit(commit)
    assert (await snapshot(opened("a"))).raw == b""
    assert len(await events(store_client)) == 5


async def test_a_commit_whose_reply_was_lost_is_no_commit_of_after_the_erasure(
    store_client: Redis, opened: Open
) -> None:
    """Law: written and then sent again after the erasure, it is refused: it does not stand as it was written."""
    store = opened("a")
    commit = await write(store, [RAW])
    await begin(store_client)
    again = opened("a")
    await begun(again)
    again._sequence = commit.sequence
    with pytest.raises(Stale):
        await again.commit(commit)
    assert (await snapshot(again)).raw == b""


async def test_rounds_and_an_erasure_do_not_lose_each_other(store_client: Redis, opened: Open) -> None:
    """Law: an erasure is carried out between two commits of a busy feed, which goes on after it."""
    store = opened("a")
    await write(store, [RAW, *OTHERS])
    stop = asyncio.Event()

    async def change() -> int:
        refused = number = 0
        while not stop.is_set():
            try:
                await write(store, [unavailability(2, reason=f"reason {number}")])
            except Stale:
                refused += 1
            number += 1
        return refused

    changing = asyncio.create_task(change())
    for number, raw in enumerate([RAW, *OTHERS[1:]]):
        assert (await begin(store_client, RecordMatch(str(json.loads(raw)["id"]), "id"))).number == number + 1
    stop.set()
    assert await changing <= len(OTHERS)
    published = await events(store_client)
    numbers = [int(str(one["sequence"])) for one in published]
    assert numbers == sorted(set(numbers))
    last = max(numbers)
    missing = await erased_between(store_client, KEYS.events, 0, last)
    assert sorted([*numbers, *missing]) == list(range(1, last + 1))


async def test_a_feed_that_changed_since_it_was_read_is_read_again(store_client: Redis, opened: Open) -> None:
    """Law: the tombstone has the sequence number that the erasure takes, and replaces nothing that is newer."""
    store, one = opened("a"), erasure(store_client)
    await write(store, [RAW, *OTHERS])
    for changed in (OTHERS[0], RAW):
        found = await one._found(MATCH.keys, MATCH.delivery_key)
        await write(store, [changed.replace(b"2026-12-24", b"2026-12-25")])
        assert await one._begun(found, MATCH.keys, MATCH.delivery_key) is None
        assert not await store_client.exists(KEYS.erased)
    found = await one._found(MATCH.keys, MATCH.delivery_key)
    await store_client.hset(KEYS.held_versions, ID, "d")
    assert await one._begun(found, MATCH.keys, MATCH.delivery_key) is None
    assert (await begin(store_client)).revision == 2


async def test_events_go_and_are_acknowledged_in_each_group(store_client: Redis, opened: Open) -> None:
    """Law: of the record alone, up to its erasure; no group holds one of them, and none was handed out without content.

    Their numbers are noted as erased.
    """
    store = opened("a")
    await write(store, [RAW, *OTHERS])
    await write(store, [unavailability(1, reason="second"), unavailability(2, reason="other")])
    for group in ("sub:s", "foreign"):
        await store_client.xgroup_create(KEYS.events, group, "0")
        await store_client.xreadgroup(group, "c", {KEYS.events: ">"}, count=6)
    assert await erase(store_client) == (2, 4, [1, 6])
    subjects = [str(one["subject"]) for one in await events(store_client)]
    assert len(subjects) == 5
    assert ID not in subjects
    for group in ("sub:s", "foreign"):
        assert (await store_client.xpending(KEYS.events, group))["pending"] == 4
        handed: Any = await store_client.xreadgroup(group, "c", {KEYS.events: "0"})
        assert all(fields for _, fields in next(iter(dict(handed).values())))
    assert await erased_between(store_client, KEYS.events, 0, 100) == [1, 6, 8]


async def test_what_is_published_after_an_erasure_stays(store_client: Redis, opened: Open) -> None:
    """Law: an erasure that goes on after the record came back deletes nothing of its new life."""
    store = opened("a")
    await write(store, [RAW])
    place = (await begin(store_client)).place
    await write(store, [unavailability(1, reason="back")])
    parts = [part async for part in erasure(store_client).erase_events(place, MATCH.sequence)]
    assert sum(part.events for part in parts) == 1
    assert kinds(await events(store_client)) == [("created", 3, 2)]


async def test_the_place_comes_after_all_that_was_published(store_client: Redis, opened: Open) -> None:
    """Law: also where the server's clock is behind the stream's last id."""
    store = opened("a")
    await write(store, [RAW])
    await store_client.xadd(KEYS.events, {"data": "x"}, id="9999999999999-7")
    await store_client.hset(KEYS.state, "entry", "9999999999999-7")
    await store_client.xdel(KEYS.events, "9999999999999-7")
    found = await begin(store_client)
    assert EntryId.parse(found.place) > EntryId(9999999999999, 7)
    assert await store_client.xlen(KEYS.events) == 1


async def test_a_held_version_is_forgotten(store_client: Redis, opened: Open) -> None:
    """Law: and counted."""
    store = opened("a")
    await write(store, [RAW])
    state = await begun(store)
    held = {ID: HeldVersion(b"d"), OTHER: HeldVersion(b"e")}
    await store.commit(Commit(state.generation, state.sequence, held=held, marks={HELD_VERSIONS: "2"}))
    assert (await begin(store_client)).held_versions == 1
    assert (set(await store.held_versions()), (await begun(store)).held_versions) == ({OTHER}, 1)


@pytest.mark.parametrize("form", ["1", "1 2", "2"])
async def test_a_snapshot_of_each_form_is_erased(store_client: Redis, form: str) -> None:
    """Law: in its own form and at its own place, so that a conversion and earlier versions read the tombstone."""
    store = opened_in_form(store_client, Permission(given=form == "2"))
    await write(store, [RAW, *OTHERS])
    if form == "1 2":
        await store_client.hset(KEYS.state, cast("Any", b"\xffforms"), form)
    assert (await begin(store_client)).snapshots == 1
    found = cast("dict[bytes, bytes]", await store_client.hgetall(KEYS.snapshots))
    name = name_of(ID) if form == "2" else ID.encode()
    left = SnapshotCodec().decode(ID, found[name])
    assert (left.raw, left.removed, bool(found[name][0] & 16)) == (b"", True, form == "2")
    later = opened_in_form(store_client, Permission(given=True))
    await write(later, [RAW])
    assert (await snapshot(later)).revision == 2


async def test_both_types_of_an_id_are_erased(store_client: Redis, opened: Open) -> None:
    """Law: the text and the integer of the same digits go together, because events do not tell them apart."""
    store = opened("a")
    await write(store, [b'{"id":"7","n":1}', b'{"id":7,"n":2}', b'{"id":77,"n":3}'])
    match = RecordMatch("7", "id")
    assert await erase(store_client, match) == (2, 0, [1, 2])
    assert {key: one.raw for key, one in (await store.known(["7", "\x017", "\x0177"])).items()} == {
        "7": b"",
        "\x017": b"",
        "\x0177": b'{"id":77,"n":3}',
    }


async def test_erasing_again_changes_no_revision(store_client: Redis, opened: Open) -> None:
    """Law: so an erasure that was broken off is completed by another one."""
    store = opened("a")
    await write(store, [RAW])
    await begin(store_client)
    assert await erase(store_client) == (1, 0, [1])
    left = await snapshot(store)
    assert (left.revision, left.raw) == (1, b"")
    assert (await begin(store_client)).snapshots == 0
    state = await begun(store)
    assert (state.tombstones, state.loss) == (1, None)
    assert int(cast("bytes", await store_client.hget(KEYS.state, TOMBSTONES))) == 1


async def held(client: Redis) -> list[Any]:
    """All that an erasure may change but the stream."""
    hashes = [await client.hgetall(key) for key in (KEYS.state, KEYS.snapshots, KEYS.erased)]
    return [*hashes, await client.zrange(KEYS.erased_events, 0, -1, withscores=True)]


async def test_a_record_that_is_erased_as_it_stands_takes_no_number(store_client: Redis, opened: Open) -> None:
    """Law: erased again, it gives the same place and the present number, and nothing is written."""
    store = opened("a")
    await write(store, [RAW, *OTHERS])
    first = await begin(store_client)
    await begin(store_client, RecordMatch(OTHER, "id"))
    before = await held(store_client)
    again = await begin(store_client)
    assert (again.place, again.number, again.snapshots, again.revision) == (first.place, 2, 0, 1)
    assert await held(store_client) == before
    assert await erase(store_client) == (1, 0, [1])  # what the second part had left


@pytest.mark.parametrize("removed", [False, True])
async def test_a_record_that_came_back_is_erased_anew(store_client: Redis, opened: Open, *, removed: bool) -> None:
    """Law: also if it was removed since, and the tombstone of that is as empty as that of an erasure."""
    store = opened("a")
    await write(store, [RAW])
    assert await erase(store_client) == (1, 0, [1])
    await write(store, [RAW])
    if removed:
        empty = SnapshotCodec().encode(ID, Snapshot(2, 3, b"", removed=True))
        await store_client.hset(KEYS.snapshots, cast("Any", name_of(ID)), cast("Any", empty))
    assert await erase(store_client) == (1, 0, [3])
    assert await store_client.hget(KEYS.erased, "number") == b"2"
    assert await erase(store_client) == (0, 0, [])
    assert await store_client.hget(KEYS.erased, "number") == b"2"


async def opened_tally(client: Redis) -> FeedErasure:
    """One that goes on with what was counted; a complete one before it counts as announced."""
    one = erasure(client)
    await one.open_tally(ID, record=ID, by="an operator", reason="")
    return one


async def test_an_erasure_that_was_broken_off_has_counted_what_it_found(store_client: Redis, opened: Open) -> None:
    """Law: the next one goes on with these counts, also if the record came back in between; nothing counts twice."""
    store = opened("a")
    await write(store, [RAW])
    first = await opened_tally(store_client)
    begun_first = await first.place_tombstone(MATCH.keys, MATCH.delivery_key)
    async with aclosing(first.erase_events(begun_first.place, MATCH.sequence)) as parts:
        await anext(parts)  # and it dies
    second = await opened_tally(store_client)
    assert await second.place_tombstone(MATCH.keys, MATCH.delivery_key) == msgspec.structs.replace(
        begun_first, snapshots=0
    )
    assert second.tally == msgspec.structs.replace(first.tally, acknowledged=0)
    await write(store, [RAW])
    third = await opened_tally(store_client)
    place = (await third.place_tombstone(MATCH.keys, MATCH.delivery_key)).place
    assert [one.events async for one in third.erase_events(place, MATCH.sequence)] == [1]
    assert (third.tally.snapshots, third.tally.sequences, third.tally.place == begun_first.place) == (2, [1, 3], False)
    assert await third.complete_tally()
    fourth = await opened_tally(store_client)
    assert (await fourth.place_tombstone(MATCH.keys, MATCH.delivery_key)).place == place
    assert (fourth.former, fourth.tally.total) == (third.tally, 0)
    assert (fourth.found.sequences, fourth.found.snapshots, fourth.found.acknowledged) == ([1, 3], 2, 0)
    await fourth.close_tally()
    assert (await opened_tally(store_client)).found.total == 0


async def test_an_erasure_of_which_nothing_was_found_leaves_no_tally(store_client: Redis) -> None:
    """Law: there is nothing to announce, now or later."""
    one = await opened_tally(store_client)
    await one.place_tombstone(MATCH.keys, MATCH.delivery_key)
    assert not await one.complete_tally()
    assert [name async for name, _ in store_client.hscan_iter(KEYS.erased, f"*ing:{ID}")] == []
    assert not await store_client.hexists(KEYS.erased, f"unannounced:{ID}")


async def test_what_is_found_of_a_record_without_a_snapshot_is_counted_before_it_goes(store_client: Redis) -> None:
    """Law: also before the first part; a complete tally is announced under the place that it has."""
    event = {"subject": ID, "sequence": "7"}
    entry: Any = await store_client.xadd(KEYS.events, {"data": json.dumps(event, separators=(",", ":"))})
    first = await opened_tally(store_client)
    place = str(EntryId.parse(entry.decode()).following)
    assert [one.events async for one in first.erase_events(place, MATCH.sequence)] == [1]
    second = await opened_tally(store_client)
    assert second.tally.sequences == [7]
    begun_second = await second.place_tombstone(MATCH.keys, MATCH.delivery_key)
    assert await second.complete_tally()
    third = await opened_tally(store_client)
    assert (await third.place_tombstone(MATCH.keys, MATCH.delivery_key)).place == begun_second.place
    assert (third.former, third.tally.total) == (second.tally, 0)


async def test_a_tally_that_was_announced_is_forgotten_alone(store_client: Redis, opened: Open) -> None:
    """Law: not the one of an erasure that has begun meanwhile."""
    await write(opened("a"), [RAW])
    first = await opened_tally(store_client)
    await first.place_tombstone(MATCH.keys, MATCH.delivery_key)
    assert await complete_tallies(store_client, KEYS, before_ms=2**60) == []
    assert await first.complete_tally()
    (complete,) = await complete_tallies(store_client, KEYS, before_ms=2**60)
    second = await opened_tally(store_client)
    await write(opened("a"), [RAW])
    await second.place_tombstone(MATCH.keys, MATCH.delivery_key)
    await forget_tally(store_client, KEYS, complete)
    assert (await opened_tally(store_client)).tally.snapshots == 1
    assert second.found.snapshots == 2
    await store_client.hset(KEYS.erased, cast("Any", complete.field), cast("Any", complete.stored))
    await forget_tally(store_client, KEYS, complete)
    assert not await store_client.hexists(KEYS.erased, f"unannounced:{ID}")


async def test_an_erasure_that_another_one_has_superseded_writes_nothing(store_client: Redis, opened: Open) -> None:
    """Law: from the opening of the other one on; that one has counted what the first one was about to delete, once."""
    await write(opened("a"), [RAW])
    event = {"subject": ID, "sequence": "x"}
    await store_client.xadd(KEYS.events, {"data": json.dumps(event, separators=(",", ":"))})
    kept: Any = {"1-0": json.dumps(event, separators=(",", ":"))}
    await store_client.hset(PAIR.letters, mapping=kept)
    await store_client.hset(PAIR.parked, mapping=kept)
    await store_client.xadd(KEYS.quarantine, {"raw": RAW, "reason": "x"})
    first = await opened_tally(store_client)
    place = (await first.place_tombstone(MATCH.keys, MATCH.delivery_key)).place
    counted: Any = await store_client.hget(KEYS.erased, f"unannounced:{ID}")
    second = await opened_tally(store_client)
    assert second.tally.snapshots == 1

    async def events_of(one: FeedErasure) -> int:
        async with aclosing(one.erase_events(place, MATCH.sequence)) as parts:
            return sum([part.events async for part in parts])

    def writes(one: FeedErasure) -> list[Callable[[], Awaitable[object]]]:
        return [
            lambda: one.erase_letters(PAIR, MATCH.letter),
            lambda: one.erase_retries(PAIR, place, MATCH.delivery),
            lambda: one.erase_quarantined(MATCH.quarantined),
            lambda: events_of(one),
            one.complete_tally,
        ]

    tombstone = await store_client.hgetall(KEYS.snapshots)
    await store_client.hdel(KEYS.erased, f"record:{ID}")  # as if the record were to be erased anew
    attempts: list[Callable[[], Awaitable[object]]] = [
        *writes(first),
        lambda: first.place_tombstone(MATCH.keys, MATCH.delivery_key),
    ]
    for refused in attempts:
        with pytest.raises(ErasureSuperseded, match="another erasure of this record"):
            await refused()
    await first.close_tally()  # its end is no error: it is called when all is announced
    assert await store_client.hget(KEYS.erased, f"unannounced:{ID}") == counted
    assert await store_client.hgetall(KEYS.snapshots) == tombstone
    for key, left in ((PAIR.letters, 1), (PAIR.parked, 1)):
        assert await store_client.hlen(key) == left
    assert (await store_client.xlen(KEYS.events), await store_client.xlen(KEYS.quarantine)) == (2, 1)
    assert [int(cast("Any", await write_())) for write_ in writes(second)] == [1, 1, 1, 2, 1]
    with pytest.raises(ErasureSuperseded):
        await first.complete_tally()
    assert (second.tally.events, second.tally.total) == (2, 6)


async def test_what_was_counted_and_not_deleted_counts_once(store_client: Redis) -> None:
    """Law: the next erasure knows what the one before it was about to delete, also if that one deletes it meanwhile."""
    event = json.dumps({"subject": ID, "sequence": "x"}, separators=(",", ":"))
    kept: Any = {"1-0": event, "2-0": event}
    await store_client.hset(PAIR.letters, mapping=kept)
    first = await opened_tally(store_client)
    assert await first.erase_letters(PAIR, MATCH.letter) == 2
    await store_client.hset(PAIR.letters, mapping={**kept, "3-0": event})  # as if it had died before they went
    second = await opened_tally(store_client)
    assert await second.erase_letters(PAIR, MATCH.letter) == 3
    third = await opened_tally(store_client)
    await store_client.hset(PAIR.letters, mapping={**kept, "3-0": event})
    assert await third.erase_letters(PAIR, MATCH.letter) == 3
    assert third.tally.dead_letters == 3


async def test_a_tally_is_no_mark_of_an_erasure(store_client: Redis, opened: Open) -> None:
    """Law: who reads the marks of erasures gets those alone."""
    await write(opened("a"), [RAW])
    found = await begin(store_client)
    assert (await consumer(store_client).erasures()).places == {ID: EntryId.parse(found.place)}


async def test_a_damaged_snapshot_is_erased(store_client: Redis, opened: Open) -> None:
    """Law: whatever stands there goes; the revision is then one that no record has had."""
    store = opened("a")
    await write(store, [RAW, *OTHERS])
    await store_client.hset(KEYS.snapshots, cast("Any", name_of(ID)), b"\xff")
    assert (await begin(store_client)).snapshots == 1
    assert ((await snapshot(store)).revision, (await snapshot(store)).raw) == (5, b"")


async def test_a_feed_without_state_can_be_erased_from(store_client: Redis) -> None:
    """Law: where nothing is kept of a feed but its stream, its events go all the same."""
    event = {"subject": ID, "sequence": "7"}
    await store_client.xadd(KEYS.events, {"data": json.dumps(event, separators=(",", ":"))})
    assert await erase(store_client) == (1, 0, [7])


def consumer(client: Redis) -> ConsumerStore:
    return ConsumerStore(
        client,
        ConsumerScripts(client),
        PAIR,
        events=KEYS.events,
        subscription="s",
        nonce="n",
        lease=timedelta(seconds=60),
        clock=Clock(),
    )


async def test_a_settlement_of_a_process_that_does_not_know_is_refused(store_client: Redis, opened: Open) -> None:
    """Law: nothing of it is written until the process has read of the erasure; then the same may be written.

    Who knows is written with it.
    """
    await write(opened("a"), [RAW])
    delivering, store = consumer(store_client), erasure(store_client)
    assert await delivering.lease.acquire() is None
    await delivering.settle(Settlement(), now_ms=1)
    found = await begin(store_client)
    kept = Settlement(parked={"1-0": b"p"}, letters={"2-0": b"l"})
    with pytest.raises(ErasureUnknown):
        await delivering.settle(kept, now_ms=1)
    assert not await store_client.exists(PAIR.parked, PAIR.letters)
    assert await store.unaware([PAIR], found.number) == [PAIR]
    marks = await delivering.erasures()
    assert marks.places == {ID: EntryId.parse(found.place)}
    await delivering.settle(kept, now_ms=1)
    assert await store_client.hgetall(PAIR.parked) == {b"1-0": b"p"}
    assert await store.unaware([PAIR], found.number) == []
    await begin(store_client)
    await store_client.delete(PAIR.lease)
    assert await store.unaware([PAIR], found.number + 1) == []


async def test_marks_of_old_erasures_go(store_client: Redis) -> None:
    """Law: after a month; the number of the last one stays, and so do tallies that were not announced."""
    await begin(store_client, RecordMatch("old", "id"))
    await store_client.hset(KEYS.erased, "record:old", "1-0 1")
    await begin(store_client)
    found = cast("dict[bytes, bytes]", await store_client.hgetall(KEYS.erased))
    assert set(found) == {b"number", f"record:{ID}".encode(), f"unannounced:{ID}".encode(), b"unannounced:old"}
    assert found[b"number"] == b"2"


def test_quarantined_copies_are_known_by_their_id() -> None:
    """Law: by the id of a record that can be read, by its text in one that cannot; a short one only as a whole id."""
    assert MATCH.quarantined(RAW[:-9], b"cut")
    assert MATCH.quarantined(RAW.replace(ID.encode(), ID.upper().encode()), b"too deep")
    assert not MATCH.quarantined(OTHERS[0], b"reason")
    assert MATCH.quarantined(b"\x00\x01", b"snapshot of revision 3 cannot be read: x")
    short = RecordMatch("7", "id")
    assert short.quarantined(b'{"id": 7, "x"', b"cut")
    assert short.quarantined(b'{"id":"7","x"', b"cut")
    assert not short.quarantined(b'{"id":77,"n":7}', b"x")
    assert RecordMatch("Müller", "id").quarantined(b'[{"person":"M\\u00fcller"', b"cut")


SPELLINGS = [
    ("AB", b'{"id":"ab","x"'),
    ("ab", b'{"id" : " AB\t","n":1,"n":2}'),
    ("ab", b'{"id":"\\u0061b"'),
    ("a/b", b'{"id":"a\\/b"'),
    ("ab", b'{"ID":"ab"}'),
    ("ab", b'[{"id":"x"},{"id":"ab"}]'),
    ("ab", b'{"id":"ab'),
    ("ab", b'{"note":"odd quote, "id":"ab"}'),
    ("m\u00fc", '{"id":"mu\u0308"}'.encode()),
    ("M\u00dc", '{"id":"m\u00fc"'.encode("latin-1")),
    ("1.5", b'{"id":1.5}'),
    ("7", b'{"id":7.0}'),
    ("1000", b'{"id":1e3}'),
    ("7", b'{"id":007}'),
    ("true", b'{"id":true}'),
    ("1" * 40, b'{"id":%b.0}' % (b"1" * 40)),
    (ID, b'{"id":"{%b}"}' % ID.upper().encode()),
    (ID, b'{"id":"urn:uuid:%b"}' % ID.encode()),
    (ID, b'{"id":"%b"}' % ID.replace("-", "").encode()),
    (ID.replace("-", ""), b'{"id":"%b"}' % ID.encode()),
    ("kl34", b'{"id":["KL34"],"x"'),
    ("mn56", b'{"id" : {"v":{"w":[0, "mn56'),
    ("ab", b'{"id":[],"id":{"id":[7]},"id":["ab"]}'),
    ("ab", b'{"id":["odd, "x"],"id":"ab"}'),
    ("77", b'{"id":[1, 77.0]}'),
]


@pytest.mark.parametrize(("record", "raw"), SPELLINGS)
def test_a_quarantined_copy_is_known_however_its_id_is_spelled(record: str, raw: bytes) -> None:
    """Law: its id may be unusable, and its bytes need not be JSON."""
    assert RecordMatch(record, "id").quarantined(raw, b"unusable")
    assert RecordMatch(record, "key").quarantined(raw.replace(b'"id"', b'"key"').replace(b'"ID"', b'"KEY"'), b"x")


@pytest.mark.parametrize(
    ("record", "raw"),
    [
        ("j\u00fcrgen1", '{"name":"J\u00dcRGEN1"}'.encode()),
        ("j\u00fcrgen1", '{"name":"J\u00dcRGEN1"}'.encode("latin-1")),
        ("j\u00fcrgen1", '{"name":"JU\u0308RGEN1","cut":"\u00fc'.encode()[:-1]),
        ("j\u00fcrgen1", b'{"name":"J\\u00DCRGEN1"}'),
        ("stra\u00dfe1", b'{"name":"STRASSE1"}'),
        ("z/w-44", b'{"note":"z\\/W-44"}'),
        ("smile\U0001f600", b'["\\nSmile\\uD83D\\ude00"'),
        ("nurgen22", b'{"path":"C:\\users\\nurgen22"}'),
        ('quote"6', b'{"note":"quote\\"6"}'),
    ],
)
def test_an_id_of_six_characters_is_known_anywhere(record: str, raw: bytes) -> None:
    """Law: in any case, with or without escapes, in either encoding; not as part of a longer word."""
    match = RecordMatch(record, "id")
    assert match.quarantined(raw, b"unusable")
    assert not match.quarantined(b'{"note":"%b1"}' % record.encode(), b"unusable")


@pytest.mark.parametrize(
    "text", [b'{"id":', b'"id":[', b'"id":{"', b"\\u00fc\\n", b'\\"', b'"id":"', b"[" * 6, b"\xfc"]
)
def test_a_quarantined_copy_is_looked_through_in_a_short_time(text: bytes) -> None:
    """Law: the time grows with its size alone, whatever its bytes are."""

    def seconds(raw: bytes) -> float:
        match, began = RecordMatch("quite-long", "id"), time.process_time()
        assert not match.quarantined(raw, b"unusable")
        return time.process_time() - began

    half, whole = (min(seconds(text * (size // len(text))) for _ in range(3)) for size in (2**15, 2**16))
    assert whole < max(5 * half, 0.1), (half, whole)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"id":"abc"}',
        b'{"id":{"ab":0,"7":[]}}',
        b'{"id":["abc"],"x":["ab",7]}',
        b'{"id":"a b"}',
        b'{"id":"07"}',
        b'{"id":"","x":"ab"}',
        b'{"ids":"ab"}',
        b'{"id":{"x":1}}',
        b'{"id":7.01}',
        b'{"id":-7}',
        b'{"id":"7.0"}',
        b'{"id":NaN}',
        b'{"id":1e99999}',
    ],
)
def test_a_quarantined_copy_of_another_record_stays(raw: bytes) -> None:
    """Law: a short id counts only as the value of the id field, and text is no number."""
    for record in ("ab", "7"):
        assert not RecordMatch(record, "id").quarantined(raw, b"unusable")


def test_ranges() -> None:
    """Law: neighbours are one range; many are cut off visibly."""
    assert ranges_of([]) == ""
    assert ranges_of([7, 3, 4, 5, 9, 9]) == "3-5,7,9"
    assert ranges_of(list(range(0, 4000, 2))).endswith(",…")


async def test_a_feed_that_is_reset_gives_no_number_twice(store_client: Redis, opened: Open) -> None:
    """Law: also where its last events were erased, a reset feed goes on from the highest number that it has given."""
    store = opened("a")
    await write(store, [OTHERS[0], RAW])
    assert await erase(store_client) == (1, 0, [2])
    await store_client.hset(KEYS.state, "anew", "1")
    await write(store, [OTHERS[0]])
    assert [number for _, number, _ in kinds(await events(store_client))] == [1, 4]


EVENT = json.dumps({"subject": ID, "sequence": "x"}, separators=(",", ":"))
FOUND = {"snapshots": 1, "events": 3, "retries": 1, "dead_letters": 2, "quarantined": 1, "held_versions": 1}


async def planted(client: Redis) -> None:
    """Something of the record everywhere; one of its events has no sequence number."""
    await client.flushdb()
    store = opened_by(client)("a")
    await write(store, [RAW, OTHERS[0]])
    await write(store, [unavailability(1, reason="second")])
    state = await begun(store)
    held_versions = {ID: HeldVersion(b"d")}
    await store.commit(Commit(state.generation, state.sequence, held=held_versions, marks={HELD_VERSIONS: "1"}))
    await client.xadd(KEYS.events, {"data": EVENT})
    await client.xgroup_create(KEYS.events, "sub:s", "0")
    await client.hset(PAIR.letters, mapping=cast("Any", {"1-0": EVENT, "2-0": EVENT}))
    await client.hset(PAIR.parked, mapping=cast("Any", {"3-0": EVENT}))
    await client.xadd(KEYS.quarantine, {"raw": RAW, "reason": "x"})


@pytest.mark.parametrize("dies", [False, True])
async def test_two_erasures_at_a_time_are_announced_as_one(server: str, tmp_path: Path, *, dies: bool) -> None:
    """Law: wherever one of them is held while another one runs, or dies, all is deleted, and all of it is announced.

    There is one announcement, or repeated ones with one id, and nothing is counted twice. One that was superseded ends
    with an error.
    """
    file = tmp_path / "poller.toml"
    lines = [f'[redis]\nurl = "{server}"', '[[sources]]\nname = "acme"\nbase_url = "https://api.example.org"']
    lines += ["auth = { none = true }", f'[[sources.feeds]]\nresource = "{KEYS.feed.partition("/")[2]}"']
    file.write_text("\n".join(lines), "utf-8")
    settings, clock = load(file, {}), Clock()
    ends = list[str]()
    async with proxied(server) as proxy, commands(server) as client, commands(proxy.url) as through:
        await through.ping()
        while True:
            await planted(client)
            hold = proxy.hold_reply(to=b"", skip=len(ends))
            first = RecordErasure(through, settings, KEYS.feed, ID, clock=clock)
            second = RecordErasure(client, settings, KEYS.feed, ID, clock=clock)
            running = asyncio.create_task(first.erase(by="first"))
            async with patience("the first one to be held, or to end"):
                struck = asyncio.create_task(hold.struck.wait())
                await asyncio.wait([running, struck], return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                struck.cancel()
                break
            if dies:
                running.cancel()
                await asyncio.wait([running])
            await second.erase(by="second")
            hold.freed.set()
            async with patience("the first one to end"):
                await asyncio.wait([running])
            error = None if running.cancelled() else running.exception()
            ends.append("died" if running.cancelled() else type(error).__name__)
            assert dies or error is None or isinstance(error, ErasureSuperseded), error
            stored: Any = await client.xrange("poller:{operations}:events")
            announced = {fields[b"data"] for _, fields in stored}
            assert len(announced) == 1, (ends, announced)
            data = json.loads(announced.pop())["data"]
            assert {**data, **FOUND, "sequences": "1,3"} == data, (ends, data)
            assert [json.loads(fields[b"data"])["subject"] for _, fields in await entries_of(client)] == [OTHER]
            assert not await client.exists(PAIR.letters, PAIR.parked) + await client.xlen(KEYS.quarantine)
            assert not await client.hexists(KEYS.erased, f"unannounced:{ID}")
    assert len(ends) > 25, ends
    if not dies:
        assert {"NoneType", "ErasureSuperseded"} == set(ends), ends


async def entries_of(client: Redis) -> list[Any]:
    return cast("list[Any]", await client.xrange(KEYS.events))
