"""The upkeep of snapshots: an old dictionary goes, and so does the content of removed records."""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, cast

import pytest
import structlog
import zstandard
from redis.asyncio import Redis

from poller.changes.diff import Snapshot
from poller.changes.plan import Commit
from poller.clock import Clock, moment_of
from poller.errors import Fenced, Stale, StoreUnavailable
from poller.redis.client import commands
from poller.store.feed import FeedStore
from poller.store.feed_state import FORMS, TOMBSTONES
from poller.store.snapshots import SAMPLES, STRUCTURAL, SnapshotCodec, key_of, name_of
from poller.store.upkeep import SnapshotUpkeep, UpkeepScripts
from tests.harness.clock import StubClock
from tests.store.records import unavailability
from tests.store.test_feed import KEYS, Open, begun, events, opened_by, write
from tests.store.test_snapshot_forms import Permission
from tests.store.test_snapshot_forms import opened as opened_with

COUNT = 700
NOW_MS = 2_000_000_000_000
OLD = [unavailability(number, reason=f"private reason {number:04}") for number in range(COUNT)]
KEYS_OF_RECORDS = [str(json.loads(raw)["id"]) for raw in OLD]


@pytest.fixture
def opened(store_client: Redis) -> Open:
    """Opens the feed's store for a process, by its nonce."""
    return opened_by(store_client)


def former_dictionary(records: Sequence[bytes]) -> bytes:
    """As an earlier version trained it, on the records themselves."""
    return zstandard.train_dictionary(4096, cast("Any", records[:SAMPLES]), level=3).as_bytes()


async def written_formerly(client: Redis, opened: Open) -> FeedStore:
    """A feed whose snapshots name a dictionary that holds values of its records."""
    await write(opened("former"), [OLD[0]])
    await client.hset(KEYS.dictionaries, "1", cast("Any", former_dictionary(OLD)))
    await client.delete(KEYS.lease)
    store = opened("a")
    await write(store, OLD)
    assert SnapshotCodec.dictionary_of((await stored(client))[name_of(KEYS_OF_RECORDS[5])]) == 1
    return store


async def stored(client: Redis) -> dict[bytes, bytes]:
    return cast("dict[bytes, bytes]", await client.hgetall(KEYS.snapshots))


async def dictionaries(client: Redis) -> dict[bytes, bytes]:
    return cast("dict[bytes, bytes]", await client.hgetall(KEYS.dictionaries))


def upkeep(
    client: Redis, *, removed: timedelta = timedelta(0), clock: Clock | None = None, nonce: str = "a"
) -> SnapshotUpkeep:
    """The upkeep of the feed, in steps of one slice each."""
    ticks = iter(range(10_000))
    clock = clock or StubClock(now=lambda: moment_of(NOW_MS), monotonic=lambda: float(next(ticks)))
    return SnapshotUpkeep(client, UpkeepScripts(client), KEYS, nonce=nonce, removed=removed, clock=clock)


async def through(one: SnapshotUpkeep) -> int:
    """Go on until there is nothing more to do; how many steps that took."""
    steps = 1
    while await one.step():
        steps += 1
    return steps


async def replaced(client: Redis, store: FeedStore, one: SnapshotUpkeep) -> None:
    assert not await one.step()
    store.wants_dictionary = one.wants_dictionary
    await begun(store)


async def test_an_old_dictionary_is_replaced_and_its_snapshots_are_packed_again(
    store_client: Redis, opened: Open
) -> None:
    """Law: afterwards nothing names it, its bytes are gone, each record is as it was, and nothing was published."""
    store = await written_formerly(store_client, opened)
    known, published = dict(await store.known(KEYS_OF_RECORDS)), await events(store_client)
    assert any(b"private reason" in content for content in (await dictionaries(store_client)).values())
    one = upkeep(store_client)
    with structlog.testing.capture_logs() as logs:
        await replaced(store_client, store, one)
        assert len(await through(one) * [1]) > 1
    assert [entry["event"] for entry in logs] == ["dictionary replaced", "repacking snapshots", "snapshots kept up"]
    assert logs[-1]["repacked"] == COUNT - 1  # the first record stands without a dictionary
    found = await dictionaries(store_client)
    assert found[b"1"] == b""
    assert not any(b"private" in content for content in found.values())
    numbers = {SnapshotCodec.dictionary_of(one) for one in (await stored(store_client)).values()}
    assert numbers == {None, STRUCTURAL}
    for process in (store, opened("a")):
        await begun(process)
        assert dict(await process.known(KEYS_OF_RECORDS)) == known
        await write(process, OLD)
    assert await events(store_client) == published
    assert await through(upkeep(store_client)) == 1


async def test_a_dictionary_without_layouts_is_replaced(store_client: Redis) -> None:
    """Law: once a feed has the third form its snapshots are packed again: each takes less, and says the same."""
    permission = Permission()
    store = opened_with(store_client, permission)
    await begun(store)
    await store_client.hset(KEYS.state, cast("Any", FORMS), "2")
    await write(store, OLD)
    known, before = dict(await store.known(KEYS_OF_RECORDS)), await stored(store_client)
    one = upkeep(store_client)
    assert await through(one) == 1
    assert (one.awaits_round, one.wants_dictionary) == (True, False)
    permission.given = True
    await write(store, OLD[:1])
    await replaced(store_client, store, one)
    assert not await store_client.hget(KEYS.dictionaries, "1")
    assert one.awaits_round
    assert await through(one) > 1
    after, found = await stored(store_client), await dictionaries(store_client)
    assert after.keys() == before.keys()
    assert sum(map(len, after.values())) < 0.8 * sum(map(len, before.values()))
    assert (found[b"2"], {SnapshotCodec.dictionary_of(value) for value in after.values()}) == (b"", {3})
    assert dict(await store.known(KEYS_OF_RECORDS)) == known
    assert await through(one) == 1
    assert not one.awaits_round


def with_another(records: Sequence[bytes]) -> list[bytes]:
    """The records with a property that they have not had before."""
    return [raw[:-1] + b',"coverNeeded":%b}' % (b"true", b"false")[at % 2] for at, raw in enumerate(records)]


async def test_records_with_a_new_property_get_layouts(store_client: Redis, opened: Open) -> None:
    """Law: where the API has changed, its snapshots become as small as before, and say the same; once is enough."""
    store = opened("a")
    await write(store, OLD)
    changed = with_another(OLD)
    first = sum(map(len, (await stored(store_client)).values()))
    await write(store, changed)
    known, published = dict(await store.known(KEYS_OF_RECORDS)), await events(store_client)
    assert not any(map(SnapshotCodec.has_layout, (await stored(store_client)).values()))
    one = upkeep(store_client)
    with structlog.testing.capture_logs() as logs:
        await replaced(store_client, store, one)
        assert len(await through(one) * [1]) > 1
    assert [entry["event"] for entry in logs] == ["dictionary replaced", "repacking snapshots", "snapshots kept up"]
    after = (await stored(store_client)).values()
    assert all(map(SnapshotCodec.has_layout, after))
    assert sum(map(len, after)) < 1.1 * first
    assert (await dictionaries(store_client))[str(STRUCTURAL).encode()] == b""
    for process in (store, opened("a")):
        await begun(process)
        assert dict(await process.known(KEYS_OF_RECORDS)) == known
        await write(process, changed)
    assert await events(store_client) == published
    again = upkeep(store_client)
    assert (await through(again), again.wants_dictionary) == (1, False)


@pytest.mark.parametrize("share", [0.2, 0.95])
async def test_a_few_other_records_make_no_new_dictionary(store_client: Redis, opened: Open, share: float) -> None:
    """Law: a dictionary stays until most records look otherwise; then one is made that knows both kinds."""
    await write(opened("a"), OLD)
    await write(opened("a"), with_another(OLD)[: int(share * COUNT)])
    one = upkeep(store_client)
    assert await through(one) == 1
    assert one.wants_dictionary == (share > 0.5)
    await replaced(store_client, opened("a"), one)
    await through(one)
    fitting = sum(map(SnapshotCodec.has_layout, (await stored(store_client)).values()))
    assert fitting == (COUNT if share > 0.5 else COUNT - int(share * COUNT))


async def test_records_without_a_structure_make_no_new_dictionary(store_client: Redis, opened: Open) -> None:
    """Law: where no dictionary would help, the present one stays, and no round is asked for another."""
    await write(opened("a"), OLD)
    rng = random.Random(1)
    mixed = [
        b'{"id":"%b","%b":%d}' % (key.encode(), rng.randbytes(20).hex().encode(), rng.getrandbits(200))
        for key in KEYS_OF_RECORDS
    ]
    await write(opened("a"), mixed)
    one = upkeep(store_client)
    assert (await through(one), one.wants_dictionary, one.awaits_round) == (1, False, False)
    assert list(await dictionaries(store_client)) == [str(STRUCTURAL).encode()]


async def test_a_round_that_finds_no_better_dictionary_adds_none(store_client: Redis, opened: Open) -> None:
    """Law: a round is asked once, and decides by the records that it finds."""
    store = opened("a")
    await write(store, OLD)
    store.wants_dictionary = True
    await begun(store)
    assert not store.wants_dictionary
    assert list(await dictionaries(store_client)) == [str(STRUCTURAL).encode()]


async def removed(client: Redis, store: FeedStore, count: int) -> None:
    """Remove this many of the records."""
    state = await begun(store)
    gone = {key: Snapshot(2, state.sequence, b"", removed=True) for key in KEYS_OF_RECORDS[:count]}
    await store.commit(Commit(state.generation, state.sequence, gone, marks={TOMBSTONES: str(count)}))
    assert sum(map(SnapshotCodec.removed, (await stored(client)).values())) == count


async def test_removed_records_are_not_counted(store_client: Redis, opened: Open) -> None:
    """Law: a feed that has lost most of its records gets a new dictionary as well, if a hundred are left."""
    store = opened("a")
    await write(store, OLD)
    await write(store, with_another(OLD))
    await removed(store_client, store, COUNT - 100)
    one = upkeep(store_client)
    await replaced(store_client, store, one)
    await through(one)
    live = [value for value in (await stored(store_client)).values() if not SnapshotCodec.removed(value)]
    assert (len(live), all(map(SnapshotCodec.has_layout, live))) == (100, True)


async def test_a_few_snapshots_that_cannot_be_read_are_left_out(store_client: Redis, opened: Open) -> None:
    """Law: the upkeep and the round judge by the same records, so a wish ends with the round that was asked."""
    store = opened("a")
    await write(store, OLD[:100])
    await write(store, with_another(OLD[:100]))
    for name, value in list((await stored(store_client)).items())[:9]:
        await store_client.hset(KEYS.snapshots, cast("Any", name), cast("Any", value[:-1] + bytes((value[-1] ^ 1,))))
    one = upkeep(store_client)
    await replaced(store_client, store, one)
    await through(one)
    assert not one.wants_dictionary
    assert sum(map(SnapshotCodec.has_layout, (await stored(store_client)).values())) == 91


async def test_a_look_a_day_is_enough(store_client: Redis, opened: Open) -> None:
    """Law: records are sampled once a day, and a wish stands until a round has heard it."""
    now, days = 0.0, 86_400.0
    store = opened("a")
    await write(store, OLD)
    one = upkeep(store_client, clock=StubClock(now=lambda: moment_of(NOW_MS), monotonic=lambda: now))
    assert (await through(one), one.wants_dictionary) == (1, False)
    await write(store, with_another(OLD))
    for later, wanted in ((now, False), (days - 1, False), (days, True), (days + 60, True)):
        now = later
        assert (await through(one), one.wants_dictionary, one.awaits_round) == (1, wanted, wanted)
    await replaced(store_client, store, one)
    for _ in range(2):
        await through(one)
        assert not one.wants_dictionary


class PassingBetween:
    """A client with which something happens behind one reading of snapshots, before its answer is looked at."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self.then: Callable[[], Awaitable[Any]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def hmget(self, name: str, fields: list[Any]) -> Any:
        found = await cast("Any", self._client.hmget(name, fields))
        then, self.then = self.then, None
        if then is not None:
            await then()
        return found


async def test_a_pass_that_ends_while_a_round_reads_hides_no_snapshot(store_client: Redis, opened: Open) -> None:
    """Law: a round reads what a pass has packed again, and what it had read just before."""
    client = PassingBetween(store_client)
    store = opened_by(cast("Redis", client))("a")
    await write(store, OLD)
    await write(store, with_another(OLD))
    known, published = dict(await store.known(KEYS_OF_RECORDS)), await events(store_client)
    one = upkeep(store_client)
    await replaced(store_client, store, one)
    store.rest()
    client.then = lambda: through(one)
    assert dict(await store.known(KEYS_OF_RECORDS)) == known
    assert (await dictionaries(store_client))[str(STRUCTURAL).encode()] == b""
    await write(store, with_another(OLD))
    assert await events(store_client) == published


async def test_a_store_that_goes_back_during_a_pass_keeps_its_snapshots(store_client: Redis, opened: Open) -> None:
    """Law: nothing is packed with a dictionary that the store has no more."""
    store = opened("a")
    await write(store, OLD)
    await write(store, with_another(OLD))
    before = {key: await store_client.dump(key) for key in (KEYS.snapshots, KEYS.dictionaries, KEYS.state)}
    one = upkeep(store_client)
    await replaced(store_client, store, one)
    assert await one.step()
    for key, content in before.items():
        await store_client.restore(key, 0, cast("Any", content), replace=True)
    kept = await stored(store_client)
    assert await one.step()
    assert await stored(store_client) == kept
    assert await through(one) == 1
    other = opened("a")
    await begun(other)
    assert not any(one.unreadable for one in (await other.known(KEYS_OF_RECORDS)).values())


async def test_rounds_go_on_meanwhile(store_client: Redis, opened: Open) -> None:
    """Law: what a round writes between two steps stays, and no commit is refused."""
    store = await written_formerly(store_client, opened)
    one = upkeep(store_client)
    await replaced(store_client, store, one)
    number = 0
    while await one.step():
        changed = unavailability(number, reason="another")
        await write(store, [changed])
        assert (await store.known([KEYS_OF_RECORDS[number]]))[KEYS_OF_RECORDS[number]].raw == changed
        number += 1
    assert number > 1
    known = await store.known(KEYS_OF_RECORDS)
    assert [snapshot.revision for snapshot in known.values()] == [2] * number + [1] * (COUNT - number)
    assert (await dictionaries(store_client))[b"1"] == b""


async def test_a_pass_that_was_broken_off_begins_again(store_client: Redis, opened: Open) -> None:
    """Law: the next process goes through all snapshots, finds what was done, and only then empties the dictionary."""
    store = await written_formerly(store_client, opened)
    one = upkeep(store_client)
    await replaced(store_client, store, one)
    assert await one.step()
    assert await one.step()
    assert (await dictionaries(store_client))[b"1"]
    done = sum(SnapshotCodec.dictionary_of(value) != 1 for value in (await stored(store_client)).values())
    assert 1 < done < COUNT
    await through(upkeep(store_client))
    assert (await dictionaries(store_client))[b"1"] == b""
    assert 1 not in {SnapshotCodec.dictionary_of(value) for value in (await stored(store_client)).values()}


async def test_a_process_that_knows_only_the_old_dictionary_writes_nothing(store_client: Redis, opened: Open) -> None:
    """Law: its commit is refused while the old one is replaced and when it was emptied; once it reads again, it writes.

    So an earlier version, which knows nothing of this, may go on beside this one.
    """
    store = await written_formerly(store_client, opened)
    codec = SnapshotCodec({1: (await dictionaries(store_client))[b"1"]})
    one = upkeep(store_client)
    await replaced(store_client, store, one)
    earlier = opened("a")
    for _ in range(2):
        state = await begun(store)
        await begun(earlier)
        earlier._codec = codec
        with pytest.raises(Stale):
            await earlier.commit(Commit(state.generation, state.sequence, {"k": Snapshot(1, 0, OLD[0])}))
        await through(one)
    await write(earlier, [unavailability(3, reason="later")])
    assert (await store.known([KEYS_OF_RECORDS[3]]))[KEYS_OF_RECORDS[3]].revision == 2


@pytest.mark.parametrize("lost", ["lease", "generation"])
async def test_only_the_process_with_the_lease_keeps_a_feed_up(store_client: Redis, opened: Open, lost: str) -> None:
    """Law: once the lease or the generation is another one, nothing is replaced and no dictionary is emptied."""
    store = await written_formerly(store_client, opened)
    one = upkeep(store_client)
    await replaced(store_client, store, one)
    assert await one.step()
    if lost == "lease":
        await store_client.set(KEYS.lease, "another")
        before = await stored(store_client)
        with pytest.raises(Fenced):
            await through(one)
    else:
        await store_client.hset(KEYS.state, "generation", "another")
        before = await stored(store_client)
        assert await one.step()  # it looks again at what is to be done
    assert await stored(store_client) == before
    assert (await dictionaries(store_client))[b"1"]


async def test_a_cursor_of_another_process_of_the_server_is_not_used(store_client: Redis, opened: Open) -> None:
    """Law: the pass begins again when the server has another run id: a cursor of the one before may pass over much."""
    store = await written_formerly(store_client, opened)
    one = upkeep(store_client)
    await replaced(store_client, store, one)
    assert await one.step()
    under_way = one._pass
    assert under_way is not None
    assert under_way.cursor
    under_way.run_id = b"another"
    assert await one.step()
    assert one._pass is None
    await through(one)
    assert 1 not in {SnapshotCodec.dictionary_of(value) for value in (await stored(store_client)).values()}


async def test_a_small_feed_does_without_a_dictionary(store_client: Redis, opened: Open) -> None:
    """Law: where too few records are left to train one, the old one goes all the same; later ones train another."""
    await write(opened("former"), OLD[:1])
    await store_client.hset(KEYS.dictionaries, "1", cast("Any", former_dictionary(OLD)))
    store = opened("former")
    await write(store, OLD[:9])
    one = upkeep(store_client, nonce="former")
    await replaced(store_client, store, one)
    await through(one)
    assert await dictionaries(store_client) == {b"1": b"", b"2": b""}
    assert len(await store.known(KEYS_OF_RECORDS)) == 9
    await write(store, OLD)
    assert sorted(await dictionaries(store_client)) == [b"1", b"2", b"3"]
    assert len(await store.known(KEYS_OF_RECORDS)) == COUNT


async def tombstones(client: Redis, opened: Open, *moments: int) -> FeedStore:
    """A feed of which some records were removed at these seconds, with their content as earlier versions kept it."""
    store = opened("a")
    await write(store, OLD[:9])
    state = await begun(store)
    gone = {
        KEYS_OF_RECORDS[number]: Snapshot(2, number + 1, OLD[number], removed=True, changed_at=at)
        for number, at in enumerate(moments)
    }
    await store.commit(Commit(state.generation, state.sequence, gone, marks={TOMBSTONES: str(len(gone))}))
    return store


async def test_the_content_of_removed_records_goes_after_its_time(store_client: Redis, opened: Open) -> None:
    """Law: tombstones that are older than ``retention.removed`` keep revision, sequence and moment, no more."""
    now = NOW_MS // 1000
    store = await tombstones(store_client, opened, now - 3601, now - 3599, 0)
    before = dict(await store.known(KEYS_OF_RECORDS))
    await through(upkeep(store_client, removed=timedelta(hours=1)))
    found = await store.known(KEYS_OF_RECORDS)
    emptied = [key for key, one in found.items() if one != before[key]]
    assert emptied == [KEYS_OF_RECORDS[0], KEYS_OF_RECORDS[2]]
    for key in emptied:
        assert found[key] == Snapshot(2, before[key].sequence, b"", removed=True, changed_at=before[key].changed_at)
    await through(upkeep(store_client))
    assert (await store.known(KEYS_OF_RECORDS))[KEYS_OF_RECORDS[1]].raw == OLD[1]  # not due: it was looked at just now
    later = StubClock(now=lambda: moment_of(NOW_MS + 86_400_000))
    await through(upkeep(store_client, clock=later))
    assert (await store.known(KEYS_OF_RECORDS))[KEYS_OF_RECORDS[1]].raw == b""


async def test_a_record_that_returns_after_its_content_went_is_created(store_client: Redis, opened: Open) -> None:
    """Law: its revision goes on, whatever is kept of what it was."""
    store = await tombstones(store_client, opened, 1, 1)
    await through(upkeep(store_client))
    await write(store, OLD[:2])
    last = (await events(store_client))[-2:]
    assert [str(one["type"]).rpartition(".created.")[2] for one in last] == ["v1", "v1"]
    assert [cast("dict[str, Any]", one["data"])["revision"] for one in last] == [3, 3]


async def test_a_feed_without_tombstones_is_not_scanned(store_client: Redis, opened: Open) -> None:
    """Law: a feed that has nothing to keep up is looked at and no more."""
    await write(opened("a"), OLD[:2])
    one = upkeep(store_client)
    assert not await one.step()
    assert await store_client.hget(KEYS.state, "upkeep_at") is None
    assert (one.interval, upkeep(store_client, removed=timedelta(hours=1)).interval) == (
        timedelta(days=1),
        timedelta(minutes=6),
    )


async def test_a_failing_store_breaks_a_pass_off(store_url: str) -> None:
    """Law: the error is raised, and the next step begins again from the first snapshot."""
    async with commands(store_url) as client:
        opened = opened_by(client)
        store = await written_formerly(client, opened)
        one = upkeep(client)
        await replaced(client, store, one)
        assert await one.step()
        broken = one._client
        async with commands("redis://127.0.0.1:1/0") as away:
            one._client = away
            one._scripts = UpkeepScripts(away)
            with pytest.raises(StoreUnavailable):
                await one.step()
        one._client, one._scripts = broken, UpkeepScripts(broken)
        await through(one)
        assert (await dictionaries(client))[b"1"] == b""
        assert {key_of(name) for name in await stored(client)} == set(KEYS_OF_RECORDS)
