"""Laws of :mod:`poller.store.consumer_state`, on real servers: only the owner of the lease reads and writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from redis.asyncio import Redis

from poller.clock import Clock
from poller.errors import Fenced, GroupGone, StoreError, StoreRefused, StoreUnavailable
from poller.redis.client import commands, servers
from poller.store.consumer_state import ConsumerScripts, ConsumerStore, Settlement, forget
from poller.store.keys import ConsumerKeys, FeedKeys
from tests.harness.waiting import patience
from tests.proxy import Proxy, proxied

FEED = FeedKeys.of("p", "acme/a")
KEYS = ConsumerKeys.of("p", "acme/a", "s")
TTL = timedelta(seconds=30)


def text(entry: object) -> str:
    assert isinstance(entry, bytes)
    return entry.decode()


class Seconds(Clock):
    """A clock that the test moves."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


@dataclass
class Scene:
    client: Redis
    url: str
    clock: Seconds = field(default_factory=Seconds)

    def store(
        self,
        nonce: str = "one",
        *,
        client: Redis | None = None,
        ttl: timedelta = TTL,
        kind: type[ConsumerStore] = ConsumerStore,
    ) -> ConsumerStore:
        mine = client or self.client
        return kind(
            mine,
            ConsumerScripts(mine, shebang="#!lua\n"),
            KEYS,
            events=FEED.events,
            subscription="s",
            nonce=nonce,
            lease=ttl,
            clock=self.clock,
        )

    async def opened(self, nonce: str = "one") -> ConsumerStore:
        store = self.store(nonce)
        assert await store.lease.acquire() is None
        await store.open("earliest")
        return store

    async def add(self, *events: bytes) -> list[str]:
        return [text(await self.client.xadd(FEED.events, {"data": event})) for event in events]

    async def held(self) -> list[str]:
        found = await self.client.xpending_range(FEED.events, "sub:s", "-", "+", 99)
        return [text(one["message_id"]) for one in found]


@pytest.fixture
async def scene(any_store: str) -> AsyncIterator[Scene]:
    client = commands(any_store)
    yield Scene(client, any_store)
    await client.aclose()


async def test_one_process_has_the_lease(scene: Scene) -> None:
    """One process has the lease; another learns how long it lasts, and gets it at once after a release."""
    one, two = scene.store("one"), scene.store("two")
    assert await one.lease.acquire() is None
    other = await two.lease.acquire()
    assert other is not None
    assert timedelta(0) < other.remaining <= TTL
    assert (one.held, two.held) == (True, False)
    assert not await two.lease.renew()
    await two.lease.release()
    assert await one.lease.renew()
    await one.lease.release()
    assert not one.held
    assert await two.lease.acquire() is None


async def test_a_lease_without_an_end_is_another_s(scene: Scene) -> None:
    """A lease key without an expiry belongs to another process."""
    await scene.client.set(KEYS.lease, "someone")
    assert await scene.store().lease.acquire() is not None


async def test_a_lease_from_before_the_servers_clock_was_set_back_ends(scene: Scene) -> None:
    """A lease with hours left dates from before the clock was set back; it is shortened to one term.

    A lease with minutes left may come from another configuration, and stays as it is.
    """
    await scene.client.set(KEYS.lease, "gone", ex=3600)
    other = await scene.store().lease.acquire()
    assert other is not None
    assert other.remaining <= TTL
    assert 0 < await scene.client.pttl(KEYS.lease) <= TTL.total_seconds() * 1000
    await scene.client.set(KEYS.lease, "slow", ex=590)
    other = await scene.store().lease.acquire()
    assert other is not None
    assert other.remaining > timedelta(seconds=500)


async def test_a_lease_counts_as_lost_when_it_may_be(scene: Scene) -> None:
    """A process that was suspended past the end of its lease knows this without asking the store."""
    store = await scene.opened()
    scene.clock.seconds += 29
    assert store.held
    assert await store.lease.renew()
    scene.clock.seconds += 29
    assert store.held
    scene.clock.seconds += 1
    assert not store.held


@pytest.mark.parametrize("again", [False, True], ids=["take", "renew"])
async def test_a_lease_counts_from_the_asking(scene: Scene, again: bool) -> None:
    """A lease counts from the request, not from the reply."""
    async with proxied(scene.url) as proxy:
        client = commands(proxy.url)
        store = scene.store(client=client)
        try:
            if again:
                assert await store.lease.acquire() is None
            await client.script_flush()  # so that the script itself is sent (EVAL)
            held = proxy.hold_reply(to=b"EVAL")
            scene.clock.seconds = 100.0
            asking = asyncio.create_task(store.lease.renew() if again else store.lease.acquire())
            async with patience("the reply to arrive at the proxy"):
                await held.struck.wait()
            scene.clock.seconds += 20
            held.freed.set()
            assert await asking is (True if again else None)
        finally:
            await client.aclose()
    assert store.held
    scene.clock.seconds += 9.9
    assert store.held
    scene.clock.seconds += 0.1
    assert not store.held


async def test_without_the_lease_nothing_is_read_and_nothing_is_written(scene: Scene) -> None:
    """A fenced process neither reads nor settles; entries that it read would never reach the owner."""
    store = await scene.opened()
    (entry,) = await scene.add(b"{}")
    await scene.client.set(KEYS.lease, "two")
    with pytest.raises(Fenced):
        await store.read(most=9)
    assert not store.held
    with pytest.raises(Fenced):
        await store.pending("0", most=9)
    with pytest.raises(Fenced):
        await store.settle(Settlement([entry], {entry: b"p"}, [], {entry: b"l"}, entry), now_ms=1)
    assert await scene.held() == []
    assert await scene.client.exists(KEYS.parked, KEYS.letters, KEYS.letter_times) == 0
    heir = await scene.opened("two")
    assert await heir.read(most=9) == [(entry, b"{}")]


async def test_whoever_takes_over_finds_what_was_read_and_not_settled(scene: Scene) -> None:
    """A new owner gets entries that were read and not settled, in order; trimmed and empty entries differ."""
    store = await scene.opened()
    entries = await scene.add(b"1", b"2", b"3", b"4")
    foreign = text(await scene.client.xadd(FEED.events, {"other": b"x"}))
    assert [entry for entry, _ in await store.read(most=9)] == [*entries, foreign]
    await store.settle(Settlement([entries[1]]), now_ms=1)
    await scene.client.xdel(FEED.events, entries[2])
    await store.lease.release()
    heir = await scene.opened("two")
    assert await heir.pending("0", most=2) == [(entries[0], b"1"), (entries[2], None)]
    assert await heir.pending(entries[2], most=9) == [(entries[3], b"4"), (foreign, b"")]
    assert await heir.pending(foreign, most=9) == []
    assert await heir.read(most=9) == []
    assert await heir.fetch([entries[0], entries[2]]) == {entries[0]: b"1"}


async def test_parked_and_out_of_the_group_in_one_step(scene: Scene) -> None:
    """One settlement acknowledges entries, schedules retries and writes dead letters with their times."""
    store = await scene.opened()
    one, two = await scene.add(b"1", b"2")
    await store.read(most=9)
    await store.settle(Settlement([one, two], {one: b"waits"}, [], {two: b"letter"}, two), now_ms=7)
    assert await scene.held() == []
    assert await store.parked() == {one: b"waits"}
    assert await scene.client.hgetall(KEYS.letters) == {two.encode(): b"letter"}
    assert await scene.client.zrange(KEYS.letter_times, 0, -1) == [two.encode()]
    assert await scene.client.zscore(KEYS.letter_times, two) == 7
    await store.settle(Settlement(unparked=[one]), now_ms=8)
    assert await store.parked() == {}
    assert await scene.client.hget(KEYS.state, "place") == two.encode()


async def test_what_lua_cannot_take_at_once_is_taken_in_parts(scene: Scene) -> None:
    """A settlement of ten thousand entries, too many for one Lua call, is written in parts."""
    store = await scene.opened()
    many = {f"{number}-1": b"x" for number in range(10_000)}
    await store.settle(Settlement(list(many), many), now_ms=1)
    assert await scene.client.hlen(KEYS.parked) == 10_000
    await store.settle(Settlement(unparked=list(many)), now_ms=1)
    assert await scene.client.hlen(KEYS.parked) == 0


@asynccontextmanager
async def twin_of(scene: Scene) -> AsyncIterator[tuple[ConsumerStore, Proxy]]:
    """The same process's store once more, over a proxy; the server knows its script."""
    async with proxied(scene.url) as proxy:
        client = commands(proxy.url)
        try:
            twin = scene.store(client=client)
            await twin.settle(Settlement(), now_ms=1)
            yield twin, proxy
        finally:
            await client.aclose()


async def test_a_settlement_whose_reply_is_lost_is_sent_again_and_counts_once(scene: Scene) -> None:
    """A settlement is sent again if it or its reply is lost, and counts once."""
    store = await scene.opened()
    one, two = await scene.add(b"1", b"2")
    await store.read(most=9)
    async with twin_of(scene) as (twin, proxy):
        lost = proxy.lose_reply(to=b"EVALSHA")
        await twin.settle(Settlement([one], {one: b"p"}), now_ms=1)
        assert lost.struck.is_set()
        cut = proxy.reset(to=b"EVALSHA")
        await twin.settle(Settlement([two], {}, [one]), now_ms=1)
        assert cut.struck.is_set()
    assert await store.parked() == {}
    assert await scene.held() == []


async def test_a_settlement_that_nobody_waits_for_whose_reply_is_lost_is_not_known_to_be_written(scene: Scene) -> None:
    """Only an answer says that it was written; whoever waits for it then has it sent again."""
    store = await scene.opened()
    (one,) = await scene.add(b"1")
    await store.read(most=9)
    async with twin_of(scene) as (twin, proxy):
        lost = proxy.lose_reply(to=b"EVALSHA")
        sent = twin.begin_settle(Settlement([one]), now_ms=1)
        await asyncio.wait([sent.answer])
        assert lost.struck.is_set()
        assert not twin.note_answer(sent)
        await twin.settled(sent)
    assert await scene.held() == []


async def test_a_settlement_that_comes_late_writes_nothing(scene: Scene) -> None:
    """A settlement that arrives after later ones writes nothing; a new owner counts from 1."""
    store = await scene.opened()
    (one,) = await scene.add(b"1")
    await store.read(most=9)
    await store.settle(Settlement([one], {one: b"p"}), now_ms=1)
    await store.settle(Settlement(unparked=[one]), now_ms=1)
    late = scene.store()  # the same process, and its first settlement once more
    await late.settle(Settlement([one], {one: b"p"}), now_ms=1)
    assert await store.parked() == {}
    await store.lease.release()
    heir = await scene.opened("two")
    await heir.settle(Settlement([], {one: b"p"}), now_ms=1)
    assert await store.parked() == {one: b"p"}


async def lost_since(scene: Scene, before: dict[str, bytes]) -> None:
    """Restore these keys, so that the store loses later writes as in a failover; leases stay."""
    for key, value in before.items():
        await scene.client.restore(key, 0, value, replace=True)


async def stored(scene: Scene) -> dict[str, bytes]:
    """The keys of the feed and of the consumer, dumped."""
    return {key: await scene.client.dump(key) or b"" for key in (FEED.events, KEYS.state, KEYS.parked)}


@pytest.mark.parametrize("notices", ["the next settlement", "a renewal of the lease"])
async def test_settlements_that_the_store_lost_are_noticed(scene: Scene, notices: str) -> None:
    """When the store has lost settlements, the lease counts as lost, and the entries are read again as unsettled.

    The settlement that comes next writes nothing, whoever notices first: no letter, no retry, no position.
    """
    store = await scene.opened()
    one, two, three = await scene.add(b"1", b"2", b"3")
    await store.read(most=9)
    await store.settle(Settlement([one], {one: b"p"}), now_ms=1)
    before = await stored(scene)
    await store.settle(Settlement([two], unparked=[one]), now_ms=1)
    assert await store.lease.renew()
    await lost_since(scene, before)
    if notices == "a renewal of the lease":
        assert not await store.lease.renew()
    for _ in range(2):
        with pytest.raises(Fenced, match="lost settlements of sub:s"):
            await store.settle(Settlement([two, three], {two: b"p"}, [one], {three: b"l"}, three), now_ms=1)
    assert not store.held
    assert await store.lease.acquire() is None
    assert await stored(scene) == before
    assert not await scene.client.exists(KEYS.letters)
    await store.settle(Settlement([two, three], unparked=[one]), now_ms=1)
    assert await store.lease.renew()
    assert (await scene.held(), await store.parked()) == ([], {})


async def test_a_settlement_that_nobody_waits_for_counts_like_any_other(scene: Scene) -> None:
    """It is sent once, and the next settlement notices that the store has lost it."""
    store = await scene.opened()
    one, two, three = await scene.add(b"1", b"2", b"3")
    await store.read(most=9)
    await store.settle(Settlement(), now_ms=1)  # the server knows the script now
    sent_before = await calls(scene.client, "evalsha")
    sent = store.begin_settle(Settlement([one], {one: b"p"}), now_ms=1)
    await asyncio.wait([sent.answer])
    await store.settled(sent)
    assert await calls(scene.client, "evalsha") == sent_before + 1
    before = await stored(scene)
    sent = store.begin_settle(Settlement([two]), now_ms=1)
    await asyncio.wait([sent.answer])
    assert store.note_answer(sent)
    assert await scene.held() == [three]
    await lost_since(scene, before)
    with pytest.raises(Fenced, match="lost settlements of sub:s"):
        await store.settle(Settlement([three]), now_ms=1)


@pytest.mark.parametrize("ended", ["released", "ran out"])
async def test_nothing_is_lost_where_another_owner_settled_in_between(scene: Scene, ended: str) -> None:
    """Settlements of another owner in between are no loss: serials are checked only within one holding of a lease."""
    store = await scene.opened()
    await store.settle(Settlement(), now_ms=1)
    if ended == "released":
        await store.lease.release()
    else:
        scene.clock.seconds += TTL.total_seconds() + 1
        await scene.client.delete(KEYS.lease)  # the lease has expired in the store, too
    other = await scene.opened("two")
    await other.settle(Settlement(), now_ms=1)
    await other.lease.release()
    assert await store.lease.acquire() is None
    assert await store.lease.renew()
    await store.settle(Settlement(), now_ms=1)
    assert await store.lease.renew()
    assert store.held


async def test_a_delivery_that_cannot_become_a_dead_letter_stays_scheduled(scene: Scene) -> None:
    """If the server refuses the write of a dead letter, the delivery stays scheduled and no event is lost."""
    store = await scene.opened()
    (one,) = await scene.add(b"1")
    await store.read(most=9)
    await store.settle(Settlement([one], {one: b"p"}), now_ms=1)
    await scene.client.set(KEYS.letters, "another kind of key")
    with pytest.raises(StoreError):
        await store.settle(Settlement(unparked=[one], letters={one: b"l"}), now_ms=1)
    assert await store.parked() == {one: b"p"}
    await scene.client.delete(KEYS.letters)
    await store.settle(Settlement(unparked=[one], letters={one: b"l"}), now_ms=1)
    assert await store.parked() == {}
    assert await scene.client.hgetall(KEYS.letters) == {one.encode(): b"l"}


async def test_a_store_that_stays_away_ends_it_with_the_lease(scene: Scene) -> None:
    """A settlement is given up when the lease ends."""
    async with proxied(scene.url) as proxy:
        client = commands(proxy.url)
        proxy.reset(to=b"EVALSHA", times=99)
        try:
            with pytest.raises(StoreUnavailable):
                await scene.store(client=client, ttl=timedelta(milliseconds=120)).settle(Settlement(["1-0"]), now_ms=1)
        finally:
            await client.aclose()
    assert proxy.times(b"EVALSHA") > 1


async def test_a_reply_of_a_read_that_is_lost_leaves_what_was_in_it_to_be_asked_for(scene: Scene) -> None:
    """Entries of a lost reply are pending in the group, and the owner gets them from there."""
    store = await scene.opened()
    assert await store.read(most=9) == []  # the server knows the script now
    (one,) = await scene.add(b"1")
    async with proxied(scene.url) as proxy:
        client = commands(proxy.url)
        proxy.lose_reply(to=b"EVALSHA")
        try:
            with pytest.raises(StoreUnavailable):
                await scene.store(client=client).read(most=9)
        finally:
            await client.aclose()
    assert await store.read(most=9) == []
    assert await store.pending("0", most=9) == [(one, b"1")]


@pytest.mark.parametrize("loss", ["destroyed", "deleted"])
async def test_a_group_that_is_gone_is_made_again_where_all_before_was_settled(scene: Scene, loss: str) -> None:
    """A lost group is created again at the settled position: unsettled events come again, settled ones do not."""
    store = await scene.opened()
    one, two, three = await scene.add(b"1", b"2", b"3")
    await store.read(most=2)
    await store.settle(Settlement([one], place=one), now_ms=1)
    if loss == "destroyed":
        await scene.client.xgroup_destroy(FEED.events, "sub:s")
    else:
        await scene.client.delete(FEED.events)
    with pytest.raises(GroupGone):
        await store.read(most=9)
    with pytest.raises(GroupGone):
        await store.pending("0", most=9)
    await store.open("now")
    expected = [(two, b"2"), (three, b"3")]
    if loss == "deleted":
        (new,) = await scene.add(b"4")
        expected = [(new, b"4")]
    assert await store.read(most=9) == expected


async def test_a_group_that_is_gone_together_with_settlements_is_read_from_the_beginning(scene: Scene) -> None:
    """If the store has lost the group and settlements, as in a failover, the lease counts as lost.

    What was scheduled by such a settlement would else be taken for scheduled when it is read again, and be lost.
    """
    store = await scene.opened()
    one, two = await scene.add(b"1", b"2")
    await store.read(most=9)
    await store.settle(Settlement([one, two], {one: b"p"}, place=two), now_ms=1)
    await scene.client.xgroup_destroy(FEED.events, "sub:s")
    await scene.client.delete(KEYS.state, KEYS.parked)
    with pytest.raises(Fenced, match="lost sub:s and its settlements"):
        await store.read(most=9)
    assert not store.held


async def test_where_a_new_group_begins(scene: Scene) -> None:
    """A new group begins at the end or the start of the stream; lost before any delivery, it begins there again."""
    before = await scene.add(b"1")
    store = scene.store()
    await store.lease.acquire()
    await store.open("now")
    after = await scene.add(b"2")
    await scene.client.xgroup_destroy(FEED.events, "sub:s")
    await store.open("now")
    assert [entry for entry, _ in await store.read(most=9)] == after
    await scene.client.delete(KEYS.state)
    await scene.client.xgroup_destroy(FEED.events, "sub:s")
    await store.open("earliest")
    assert [entry for entry, _ in await store.read(most=9)] == [*before, *after]


@pytest.mark.parametrize("known", [False, True], ids=["new", "begun"])
async def test_a_group_that_another_has_removed_is_not_brought_back(scene: Scene, known: bool) -> None:
    """A process whose lease is gone, as when its subscription was removed meanwhile, creates nothing."""
    await scene.add(b"1")
    store = await scene.opened() if known else scene.store()
    await store.lease.acquire()
    await forget(scene.client, FEED, KEYS, "s")
    with pytest.raises(Fenced):
        await store.open("now")
    assert not store.held
    assert await scene.client.xinfo_groups(FEED.events) == []
    assert not await scene.client.exists(KEYS.state)


class _RemovedBetween(ConsumerStore):
    """Its subscription is removed between the two writes of :meth:`open`."""

    async def _note_place(self, place: str, beginning: str, backfill: str) -> bytes:
        noted = await super()._note_place(place, beginning, backfill)
        await forget(self._client, FEED, KEYS, "s")
        return noted


async def test_a_removal_between_place_and_group_is_not_undone(scene: Scene) -> None:
    """The place is written first, by itself; the group is created only while the lease is still there."""
    await scene.add(b"1")
    store = scene.store(kind=_RemovedBetween)
    await store.lease.acquire()
    with pytest.raises(Fenced, match="no group created"):
        await store.open("earliest")
    assert await scene.client.xinfo_groups(FEED.events) == []
    assert not await scene.client.exists(KEYS.state)


async def test_a_stream_that_is_not_there_yet(scene: Scene) -> None:
    """A subscription that is older than its feed's first event gets that event."""
    store = scene.store()
    await store.lease.acquire()
    await store.open("now")
    entries = await scene.add(b"1")
    assert [entry for entry, _ in await store.read(most=9)] == entries


# Many subscriptions of one process at one feed: what they ask at the same time goes in one request.


async def together(scene: Scene, names: Sequence[str], places: Mapping[str, str] | None = None) -> list[ConsumerStore]:
    """Stores that share their requests, each with its lease and its group, which begins at one of these places."""
    scripts = ConsumerScripts(scene.client, shebang="#!lua\n")
    stores = []
    for name in names:
        keys = ConsumerKeys.of("p", "acme/a", name)
        store = ConsumerStore(
            scene.client,
            scripts,
            keys,
            events=FEED.events,
            subscription=name,
            nonce=f"of-{name}",
            lease=TTL,
            clock=scene.clock,
        )
        assert await store.lease.acquire() is None
        await store.open("earliest")
        if places:
            await scene.client.xgroup_setid(FEED.events, f"sub:{name}", places[name])
        stores.append(store)
    return stores


async def calls(client: Redis, command: str) -> int:
    """How often a command was carried out, outside of scripts and in them."""
    stats: Any = [await one.info("commandstats") for one in await servers(client)]
    return sum(one.get(f"cmdstat_{command}", {}).get("calls", 0) for one in stats)


async def test_many_subscriptions_read_an_entry_once(scene: Scene) -> None:
    """Subscriptions that read at the same time share one request, and what several of them get is one object."""
    stores = await together(scene, [f"s{number}" for number in range(9)])
    entries = await scene.add(b"1" * 100, b"2" * 100)
    await stores[0].pending("0", most=1)  # the script is known then
    before = await calls(scene.client, "evalsha")
    found = await asyncio.gather(*(store.read(most=9) for store in stores))
    assert await calls(scene.client, "evalsha") - before == 1
    assert found == [[(entries[0], b"1" * 100), (entries[1], b"2" * 100)]] * 9
    assert len({id(event) for read in found for _, event in read}) == 2
    assert await asyncio.gather(*(store.read(most=9) for store in stores)) == [[]] * 9


async def test_each_of_many_gets_its_own_entries(scene: Scene) -> None:
    """A group that is further on, one that has pending entries, and one that wants fewer get theirs in one request."""
    one, two, three = await scene.add(b"1", b"2", b"3")
    ahead, behind, few, again = await together(
        scene, ["ahead", "behind", "few", "again"], {"ahead": two, "behind": "0", "few": "0", "again": "0"}
    )
    await again.read(most=2)
    await scene.client.xdel(FEED.events, two)
    found = await asyncio.gather(
        ahead.read(most=9), behind.read(most=9), few.read(most=1), again.pending("0", most=9), again.read(most=9)
    )
    assert [*found] == [
        [(three, b"3")],
        [(one, b"1"), (three, b"3")],
        [(one, b"1")],
        [(one, b"1"), (two, None)],
        [(three, b"3")],
    ]


async def test_what_one_of_many_cannot_read_is_no_concern_of_the_others(scene: Scene) -> None:
    """A lost lease, a lease of another type and a lost group fail the read of their own subscription alone."""
    fenced, mistyped, gone, well = await together(scene, ["fenced", "mistyped", "gone", "well"])
    (entry,) = await scene.add(b"1")
    await scene.client.set(fenced.keys.lease, "another")
    await scene.client.delete(mistyped.keys.lease)
    await scene.client.lpush(mistyped.keys.lease, "x")
    await scene.client.xgroup_destroy(FEED.events, "sub:gone")
    found = await asyncio.gather(
        *(store.read(most=9) for store in (fenced, mistyped, gone, well)), return_exceptions=True
    )
    assert [type(one) for one in found] == [Fenced, StoreRefused, GroupGone, list]
    assert f"{mistyped.keys.lease} is a list" in str(found[1])
    assert found[3] == [(entry, b"1")]
    assert [one["pending"] for one in await scene.client.xinfo_groups(FEED.events)] == [0, 0, 1]


async def test_a_large_answer_is_read_in_parts(scene: Scene) -> None:
    """Reads whose different entries are many megabytes are several requests; each subscription gets all of its own."""
    entries = await scene.add(*(bytes([number]) * 3_000_000 for number in range(4)))
    places = {"a": "0", "b": entries[0], "c": entries[1], "d": entries[2]}
    stores = await together(scene, list(places), places)
    await stores[0].pending("0", most=1)
    before = await calls(scene.client, "evalsha")
    found = await asyncio.gather(*(store.read(most=1) for store in stores))
    assert await calls(scene.client, "evalsha") - before == 2
    assert [[(entry, event and event[:1]) for entry, event in read] for read in found] == [
        [(entry, bytes([number]))] for number, entry in enumerate(entries)
    ]


async def test_many_settlements_are_one_request_and_each_counts_by_itself(scene: Scene) -> None:
    """Settlements of one moment are written by one request; one that is fenced writes nothing, the others do."""
    stores = await together(scene, [f"s{number}" for number in range(9)])
    (entry,) = await scene.add(b"1")
    await asyncio.gather(*(store.read(most=9) for store in stores))
    await asyncio.gather(*(store.settle(Settlement(), now_ms=1) for store in stores))
    await scene.client.set(stores[4].keys.lease, "another")
    before = await calls(scene.client, "evalsha")
    settled = await asyncio.gather(
        *(store.settle(Settlement([entry], {entry: b"p"}, place=entry), now_ms=1) for store in stores),
        return_exceptions=True,
    )
    assert await calls(scene.client, "evalsha") - before <= 2  # the fenced one asks whose the lease is
    assert [type(one) for one in settled] == [type(None)] * 4 + [Fenced] + [type(None)] * 4
    assert [one["pending"] for one in await scene.client.xinfo_groups(FEED.events)] == [0] * 4 + [1] + [0] * 4
    assert [await store.parked() for store in stores] == [{entry: b"p"}] * 4 + [{}] + [{entry: b"p"}] * 4
