"""Snapshots of all forms: how a feed comes to a later one, and what processes of two versions see."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, cast

import msgspec
import pytest
import structlog
from redis.asyncio import Redis

from poller.changes.diff import Snapshot
from poller.changes.plan import Commit
from poller.clock import Clock, moment_of
from poller.errors import Fenced, Stale, StoreError
from poller.store.feed import FeedScripts, FeedStore, has_former
from poller.store.feed_state import FORMS, FeedState, Forms, later_forms, state_of, written_form
from poller.store.keys import MemberKeys
from poller.store.members import MemberConfiguration, MemberList, Members, every_member_reads
from poller.store.snapshots import FORM, SAMPLES, SnapshotCodec, key_of, name_of
from tests.harness.clock import StubClock, store_clock
from tests.store.records import unavailability
from tests.store.test_feed import KEYS, begun, events, planned_on, write
from tests.store.test_members import LONG, fall_silent

IDS = ("7", "\x017", "A text", "sixteen letters.", "0b8e7c5e-9d4a-4d9f-8a55-6c1f3f0e2a11")
COUNT = SAMPLES + 20


class Permission:
    """Whether all others read the latest form, as the test says; counts the questions."""

    def __init__(self, *, given: bool = False) -> None:
        self.given, self.asked = given, 0

    async def __call__(self) -> bool:
        self.asked += 1
        return self.given


def opened(client: Redis, permission: Permission, nonce: str = "a", clock: Clock | None = None) -> FeedStore:
    clock = clock or StubClock(now=lambda: moment_of(1_000), draws=iter(f"{number:02x}" for number in range(100)))
    lease = timedelta(seconds=60)
    return FeedStore(client, FeedScripts(client), KEYS, nonce=nonce, lease=lease, clock=clock, may_convert=permission)


def _id(number: int) -> str:
    return str(json.loads(unavailability(number))["id"])


async def stored(client: Redis) -> dict[bytes, bytes]:
    return cast("dict[bytes, bytes]", await client.hgetall(KEYS.snapshots))


async def forms(client: Redis) -> bytes | None:
    return cast("bytes | None", await client.hget(KEYS.state, cast("Any", FORMS)))


async def in_the_first_form(client: Redis) -> dict[str, Snapshot]:
    """A feed that a process of an earlier version has written, tombstones and missing records included."""
    store = opened(client, Permission())
    await write(store, [unavailability(number) for number in range(COUNT)])
    more = {
        key: Snapshot(number + 2, 0, b'{ "id" : "%b" , "n":1}' % key.encode(), number == 1, number == 2)
        for number, key in enumerate(IDS)
    }
    state = await begun(store)
    await store.commit(Commit(state.generation, state.sequence, more))
    assert await forms(client) is None
    assert set(await stored(client)) == {key.encode() for key in (*IDS, *map(_id, range(COUNT)))}
    return dict(await store.known([*IDS, *map(_id, range(COUNT))]))


def is_in_the_second_form(found: Mapping[bytes, bytes]) -> bool:
    return all(value[0] & 16 and name == name_of(key_of(name)) for name, value in found.items())


async def test_a_feed_is_converted_once_all_processes_read_the_second_form(store_client: Redis) -> None:
    """Law: each record is known as before, stands in the hash once, and nothing is published or read again for it."""
    known, permission = await in_the_first_form(store_client), Permission()
    store = opened(store_client, permission)
    await begun(store)
    assert (permission.asked, await forms(store_client)) == (1, None)
    await store_client.set(KEYS.page_digests, "kept")
    published, permission.given = await events(store_client), True
    with structlog.testing.capture_logs() as logs:
        state = await begun(store)
    assert [(one["event"], one["records"]) for one in logs] == [
        ("converting snapshots", len(known)),
        ("snapshots converted", len(known)),
    ]
    await store.commit(Commit(state.generation, state.sequence, marks={"query": "q"}))
    assert await forms(store_client) == b"2 after 1"
    found = await stored(store_client)
    assert is_in_the_second_form(found)
    assert len(found) == len(known)
    assert await store.known(list(known)) == known
    assert await store_client.get(KEYS.page_digests) == b"kept"
    await write(store, [unavailability(number) for number in range(COUNT)])
    assert await events(store_client) == published
    assert await stored(store_client) == found


async def test_a_feed_stays_in_the_second_form(store_client: Redis) -> None:
    """Law: once it stands in the store, no process writes an earlier or a later one, whoever comes then."""
    await in_the_first_form(store_client)
    await begun(opened(store_client, Permission(given=True)))
    store = opened(store_client, Permission())
    await write(store, [unavailability(1, reason="new"), unavailability(COUNT)])
    assert await forms(store_client) == b"2 after 1"
    found = await stored(store_client)
    assert not any(value[0] & 64 for value in found.values())
    assert is_in_the_second_form(found)
    assert len(found) == len(IDS) + COUNT + 1


@pytest.mark.parametrize("given", [False, True])
async def test_a_new_feed_begins_in_the_form_that_all_read(store_client: Redis, given: bool) -> None:
    """Law: it begins in the latest form if all processes read that; else it is written as an earlier version does."""
    permission = Permission(given=given)
    store = opened(store_client, permission)
    await write(store, [unavailability(1), unavailability(2)])
    await write(store, [unavailability(1), unavailability(2, reason="new"), unavailability(3)])
    assert await forms(store_client) == (b"3" if given else None)
    assert is_in_the_second_form(await stored(store_client)) is given
    assert len(await stored(store_client)) == 3
    assert [snapshot.changed_at > 0 for snapshot in (await store.known([_id(3)])).values()] == [given]


@pytest.mark.parametrize("given", [False, True])
async def test_what_is_packed_ahead_has_the_names_of_the_form(store_client: Redis, given: bool) -> None:
    """Law: also in the first form, whose names are those of the records."""
    store = opened(store_client, Permission(given=given))
    await write(store, [unavailability(number) for number in range(SAMPLES)])
    commit = await planned_on(store, [unavailability(SAMPLES)])
    packed = store.pack(commit)
    assert packed is not None
    await store.write(commit, packed)
    found = await stored(store_client)
    assert len(found) == SAMPLES + 1
    assert all(len(name) == (17 if given else 36) for name in found)


async def test_a_conversion_that_was_broken_off_goes_on(store_client: Redis) -> None:
    """Law: what one process has converted and what not is known to the next one, which converts the rest."""
    known = await in_the_first_form(store_client)
    store = opened(store_client, Permission())
    await begun(store)
    some = dict(list((await stored(store_client)).items())[::3])
    codec = SnapshotCodec({2: cast("bytes", await store_client.hget(KEYS.dictionaries, "2"))})
    for name, value in some.items():
        key = key_of(name)
        await store_client.hdel(KEYS.snapshots, cast("Any", name))
        converted = codec.encode(key, codec.decode(key, value))
        await store_client.hset(KEYS.snapshots, cast("Any", name_of(key)), cast("Any", converted))
    await store_client.hset(KEYS.state, cast("Any", FORMS), "1 2")
    reading = opened(store_client, Permission())
    assert await reading.known(list(known)) == known
    absent = await reading.absent((), most=1000)
    assert (absent.live, absent.missing) == (len(known) - 1, len(known) - 1)
    assert {key: one for key, one in known.items() if not one.removed}.keys() == absent.some.keys()
    await begun(reading)
    assert await forms(store_client) == b"2 after 1"
    assert is_in_the_second_form(await stored(store_client))
    assert await reading.known(list(known)) == known


async def test_a_record_that_changes_before_it_is_converted_stands_in_the_store_once(store_client: Redis) -> None:
    """Law: a commit of the second form deletes the first form of its records, and of no others."""
    known = await in_the_first_form(store_client)
    store = opened(store_client, Permission())
    state = await begun(store)
    store._forms = "1 2"  # as in a round whose conversion is still to come
    store._codec = None
    changed = msgspec.structs.replace(known[_id(3)], revision=9, raw=unavailability(3, reason="new"), changed_at=5)
    await store.commit(Commit(state.generation, state.sequence, {_id(3): changed, "7": known["7"]}))
    found = await stored(store_client)
    assert (len(found), await forms(store_client)) == (len(known), b"1 2")
    assert name_of(_id(3)) in found
    assert _id(3).encode() not in found
    assert await store.known(list(known)) == {**known, _id(3): changed}
    await begun(opened(store_client, Permission()))
    assert len(await stored(store_client)) == len(known)


async def test_a_snapshot_that_was_written_meanwhile_is_not_replaced(store_client: Redis) -> None:
    """Law: the script that converts replaces what it was given, and nothing that another write has put there since."""
    await in_the_first_form(store_client)
    store = opened(store_client, Permission())
    state = await begun(store)
    name, key = _id(3).encode(), _id(3)
    names = [KEYS.lease, KEYS.state, KEYS.snapshots, KEYS.dictionaries]
    before, known = await stored(store_client), await store_client.hlen(KEYS.dictionaries)
    convert = FeedScripts(store_client).convert
    for nonce, generation, sequence, number, there, value, answer in (
        ("b", state.generation, state.sequence, known, "1", before[name], b"FENCED"),
        ("a", "other", state.sequence, known, "1", before[name], b"STALE"),
        ("a", state.generation, state.sequence + 1, known, "1", before[name], b"STALE"),
        ("a", state.generation, state.sequence, known + 1, "1", before[name], b"STALE"),
        ("a", state.generation, state.sequence, known, "1 2", before[name], b"STALE"),
        ("a", state.generation, state.sequence, known, "1", b"another", b"OK"),
    ):
        checks: list[Any] = [nonce, generation, sequence, number, FORMS, there]
        arguments = [*checks, "1 2", name, value, name_of(key), b"converted"]
        assert await convert(names, arguments) == answer
        assert await stored(store_client) == before
        assert await forms(store_client) == (b"1 2" if answer == b"OK" else None)


async def test_a_conversion_ends_where_the_lease_is_lost(store_client: Redis) -> None:
    """Law: without the lease nothing is converted, nor in a feed that was reset meanwhile."""
    await in_the_first_form(store_client)
    before = await stored(store_client)
    store = opened(store_client, Permission())
    await begun(store)
    await store_client.set(KEYS.lease, "b")
    with pytest.raises(Fenced):
        await store._convert()
    await store_client.set(KEYS.lease, "a")
    await store_client.hset(KEYS.state, "generation", "new")
    with pytest.raises(Stale):
        await store._convert()
    assert await stored(store_client) == before


async def test_a_store_that_goes_back_to_before_a_conversion_keeps_its_form(store_client: Redis) -> None:
    """Law: a round that has converted its feed writes nothing more where the store holds the first form again.

    The sequence is the same then. Snapshots of the second form would be records that no other process finds.
    """
    await in_the_first_form(store_client)
    before = [cast("dict[Any, Any]", await store_client.hgetall(key)) for key in (KEYS.state, KEYS.snapshots)]
    store = opened(store_client, Permission(given=True))
    state = await begun(store)
    assert await forms(store_client) == b"2 after 1"
    for key, kept in zip((KEYS.state, KEYS.snapshots), before, strict=True):
        await store_client.delete(key)
        await store_client.hset(key, mapping=kept)
    changed = await store.known([_id(3)])
    with pytest.raises(Stale):
        await store.commit(Commit(state.generation, state.sequence, changed))
    with pytest.raises(Stale):
        await store._write_converted("2 after 1", [])
    assert [await store_client.hgetall(key) for key in (KEYS.state, KEYS.snapshots)] == before
    await write(opened(store_client, Permission()), [unavailability(3, reason="new"), unavailability(COUNT)])
    assert len(await stored(store_client)) == len(before[1]) + 1
    kinds = [str(event["type"]).split(".")[-2] for event in (await events(store_client))[-2:]]
    assert kinds == ["modified", "created"]


async def test_what_cannot_be_read_is_converted_as_it_is(store_client: Redis) -> None:
    """Law: an unreadable snapshot is unreadable under its new name too; its record is not taken for a new one."""
    await in_the_first_form(store_client)
    await store_client.hset(KEYS.snapshots, mapping={_id(3): b"\x02\x01\x01cut", "7": b"", "A text": b"\xff" * 9})
    await store_client.hset(KEYS.snapshots, cast("Any", b"\xff no text"), "foreign")
    store = opened(store_client, Permission(given=True))
    await begun(store)
    found = await stored(store_client)
    assert (found[name_of(_id(3))], found[b"7"], found[b"\xff no text"]) == (b"\x02\x01\x01cut", b"", b"foreign")
    known = await store.known([_id(3), "7", "A text", _id(4)])
    assert {key for key, one in known.items() if one.unreadable} == {_id(3), "7", "A text"}


def test_an_earlier_version_refuses_a_feed_of_the_second_form() -> None:
    """Law: earlier versions read the names of the state's fields as text, and refuse the feed where one is none."""
    with pytest.raises(ValueError, match="utf-8"):
        FORMS.decode()
    state = {b"generation": b"g", b"sequence": b"1"}
    assert [state_of({**state, **more}).forms for more in ({}, {FORMS: b"1 2"}, {FORMS: b"2"})] == ["1", "1 2", "2"]


def test_what_a_feed_has_next() -> None:
    """Law: an empty one begins in the latest form; where records may stand in the first form, that stays known."""
    assert [later_forms("1", is_empty=empty) for empty in (True, False)] == ["3", "1 2"]
    known: tuple[Forms, ...] = ("1 2", "2 after 1", "2", "3 after 1", "3")
    assert [later_forms(one, is_empty=True) for one in known] == ["1 2", "3 after 1", "3", "3 after 1", "3"]
    assert [has_former(one) for one in ("1", *known)] == [True, True, True, False, True, False]
    assert [written_form(one) for one in ("1", *known, "4")] == [1, 2, 2, 2, 3, 3, None]


async def test_a_record_that_still_stands_in_the_first_form_is_known(store_client: Redis) -> None:
    """Law: in a feed that once had the first form, a record is looked for under both of its names."""
    known = await in_the_first_form(store_client)
    await store_client.hset(KEYS.state, cast("Any", FORMS), "3 after 1")
    store = opened(store_client, Permission(given=True))
    await begun(store)
    assert await store.known(list(known)) == known


@pytest.mark.parametrize("before", ["2", "2 after 1"])
async def test_a_feed_goes_on_in_the_third_form_once_all_processes_read_it(store_client: Redis, before: str) -> None:
    """Law: what stands there is known as before; what is written has a layout once there is a dictionary with some.

    Until then the feed says that it has the second form, so a process that reads no other may go on with it. From then
    on one that was planned on the second form writes nothing.
    """
    permission = Permission()
    if before == "2":
        await begun(opened(store_client, Permission()))
        await store_client.hset(KEYS.state, cast("Any", FORMS), before)
    else:
        await in_the_first_form(store_client)
        await begun(opened(store_client, Permission(given=True)))
    store, other = opened(store_client, permission), opened(store_client, Permission())
    await write(store, [unavailability(number) for number in range(COUNT)])
    known = await store.known([_id(number) for number in range(COUNT)])
    assert await forms(store_client) == before.encode()
    permission.given, published = True, await events(store_client)
    await begun(other)
    state = await begun(store)
    assert await forms(store_client) == before.encode()
    store.wants_dictionary = True
    state = await begun(store)
    assert await forms(store_client) == before.replace("2", "3").encode()
    assert await store.known(list(known)) == known
    assert await events(store_client) == published
    with pytest.raises(Stale):
        await other.commit(Commit(state.generation, state.sequence, dict(known)))
    await write(store, [unavailability(number, reason="new") for number in range(COUNT)])
    found = await stored(store_client)
    assert all(found[name_of(key)][0] & 64 for key in known)
    assert len(found) == len(known) + (len(IDS) if before == "2 after 1" else 0)
    assert {one.revision for one in (await store.known(list(known))).values()} == {2}


async def test_a_form_of_a_later_version_is_refused(store_client: Redis) -> None:
    """Law: nothing is read, written or reset where snapshots are of a form that this version does not know."""
    await in_the_first_form(store_client)
    await store_client.hset(KEYS.state, cast("Any", FORMS), "4")
    before = await store_client.hgetall(KEYS.state), await stored(store_client)
    with pytest.raises(StoreError, match=r"this version cannot read.*forms '4'"):
        await opened(store_client, Permission(given=True)).open_round()
    assert (await store_client.hgetall(KEYS.state), await stored(store_client)) == before


async def test_a_reset_feed_begins_again_in_the_form_that_all_read(store_client: Redis) -> None:
    """Law: a feed that an operator resets holds no form any more; so a version that reads one may go on with it."""
    await in_the_first_form(store_client)
    await begun(opened(store_client, Permission(given=True)))
    await store_client.hset(KEYS.state, "anew", "1")
    store = opened(store_client, Permission())
    await write(store, [unavailability(1)])
    assert await forms(store_client) is None
    assert list(await stored(store_client)) == [_id(1).encode()]


async def test_every_live_process_has_to_say_that_it_reads_the_second_form(store_client: Redis) -> None:
    """Law: one that does not say, for an earlier version runs there, counts as reading the first one alone."""
    keys, lasting = MemberKeys.of("poller"), timedelta(seconds=60)

    def member(name: str, said: MemberConfiguration) -> Members:
        return Members(store_client, keys, name=name, ttl=lasting, clock=store_clock(), configuration=said)

    assert await every_member_reads(store_client, keys, FORM)
    new, old = member("new", MemberConfiguration(snapshots=FORM)), member("old", MemberConfiguration())
    seen = await new.beat(["poll"], MemberList())
    assert await every_member_reads(store_client, keys, FORM)
    await old.beat(["deliver"], seen)
    for said in (b'{"feeds":["acme/contractTypes"]}', b"no JSON"):
        await store_client.hset(keys.configurations, "old", said)
        assert not await every_member_reads(store_client, keys, FORM)
    await store_client.hdel(keys.configurations, "old")
    assert not await every_member_reads(store_client, keys, FORM)
    await old.leave(seen)
    assert await every_member_reads(store_client, keys, FORM)
    await store_client.set(keys.beats, "no list")
    assert not await every_member_reads(store_client, keys, FORM)


@pytest.mark.parametrize("said", [b'{"snapshots":%d}' % FORM, b'{"feeds":["acme/contractTypes"]}', b""])
async def test_a_silent_process_counts_for_two_terms_more(store_client: Redis, said: bytes) -> None:
    """Law: one that was slow for less than that can read all feeds when it is back; one that leaves counts no more.

    One that reads the latest form holds nothing up, nor does the list of the others while it changes.
    """
    keys, is_latest = MemberKeys.of("poller"), str(FORM).encode() in said

    def member(name: str) -> Members:
        configuration = MemberConfiguration(snapshots=FORM)
        return Members(store_client, keys, name=name, ttl=LONG, clock=store_clock(), configuration=configuration)

    new, slow = member("new"), member("slow")
    for leaves in (False, True):
        await slow.beat(["poll"], MemberList())
        if said:
            await store_client.hset(keys.configurations, "slow", cast("Any", said))
        else:
            await store_client.hdel(keys.configurations, "slow")
        seen = await new.beat(["poll"], MemberList())
        assert await every_member_reads(store_client, keys, FORM) is is_latest
        for terms in (0.1, 1.9):
            await fall_silent(store_client, "slow", terms=terms)
            assert await every_member_reads(store_client, keys, FORM) is is_latest
            for _ in range(2):
                seen = await new.beat(["poll"], await member("passing").beat(["poll"], seen))
                seen = await member("passing").leave(seen)
                assert set(seen.roles) == {"new"}
                assert await every_member_reads(store_client, keys, FORM) is is_latest
        if leaves:
            await slow.leave(seen)
        else:
            await fall_silent(store_client, "slow", terms=2.1)
            await new.beat(["poll"], seen)
        assert await every_member_reads(store_client, keys, FORM)


async def test_records_are_compared_by_seals(store_client: Redis) -> None:
    """Law: of a record in the second form it is known without unpacking it whether it is as received, else of none."""
    await in_the_first_form(store_client)
    keys = [*IDS[:3], *map(_id, range(3)), "unknown"]
    store = opened(store_client, Permission())
    await begun(store)
    raws = [one.raw for one in (await store.known(keys[:-1])).values()]
    assert await store.are_stored(keys, [*raws, b"{}"]) is None
    store = opened(store_client, Permission(given=True))
    await begun(store)
    # The second of these is removed, the third one marked as missing.
    assert await store.are_stored(keys, [*raws, b"{}"]) == [True, False, False, True, True, True, False]
    raws[3] = unavailability(0, reason="other")
    assert await store.are_stored(keys, [*raws, b"{}"]) == [True, False, False, False, True, True, False]


async def test_missing_records_are_not_looked_for_where_all_live_ones_were_seen(store_client: Redis) -> None:
    """Law: that is known by counting, once all were read and the counts were right.

    They are to be found right again after a record was removed or came back, and after the lease was lost.
    """
    store = opened(store_client, Permission(given=True))
    await write(store, [unavailability(number) for number in range(5)])
    state = await begun(store)
    assert state.tombstones == 0
    seen = {_id(number) for number in range(5)}

    async def read_all(known: int | None, listed: set[str] = seen) -> tuple[int, int, bool]:
        """What is missing, and whether all snapshots were read for that."""
        found = await store.absent(listed, most=9, known=known)
        return found.live, found.missing, bool(found.listed)

    assert await read_all(5) == (5, 0, True)
    assert await read_all(5) == (5, 0, False)
    assert await read_all(None) == (5, 0, True)
    assert await read_all(4, seen - {_id(1)}) == (5, 1, True)
    state = await begun(store)
    gone = msgspec.structs.replace((await store.known([_id(1)]))[_id(1)], removed=True)
    await store.commit(Commit(state.generation, state.sequence, {_id(1): gone}, marks={"tombstones": "1"}))
    assert await read_all(4, seen - {_id(1)}) == (4, 0, True)
    assert await read_all(4, seen - {_id(1)}) == (4, 0, False)
    assert await read_all(5) == (4, 0, True)
    await store.release()
    assert isinstance(await store.open_round(), FeedState)
    assert await read_all(4, seen - {_id(1)}) == (4, 0, True)
    await store.commit(Commit(state.generation, state.sequence, marks={"tombstones": "2"}))
    for _ in range(2):
        assert await read_all(3, {_id(2), _id(3), _id(4)}) == (4, 1, True)
