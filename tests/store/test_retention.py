"""Laws of :mod:`poller.store.retention` and its scripts, on real stores of all kinds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

from poller.clock import Clock
from poller.delivery.delivery_codec import Overrun, letter_of
from poller.errors import Fenced
from poller.redis.client import commands
from poller.store.consumer_state import ConsumerScripts, ConsumerStore, Settlement, forget_unbegun
from poller.store.keys import ConsumerKeys, FeedKeys
from poller.store.replay import ReplaySpan, cancel, start_replay
from poller.store.retention import (
    RetentionRule,
    StreamExtent,
    Trimmer,
    TrimScripts,
    TrimToLength,
    TrimUpTo,
    WatchedConsumer,
    holder,
    next_step,
    pressing,
)
from poller.store.stream import EntryId, before_moment
from tests.stores import all_keys

FEED = "acme/contractTypes"
FEED_KEYS = FeedKeys.of("poller", FEED)
EVENTS = FEED_KEYS.events
KEYS = ConsumerKeys.of("poller", FEED, "a")
NOW = datetime(2026, 3, 2, tzinfo=UTC)
AGED = RetentionRule(timedelta(days=7), 2**40)
A = {"a": WatchedConsumer(KEYS)}


@pytest.fixture
async def client(any_store: str) -> AsyncIterator[Redis]:
    async with commands(any_store) as found:
        await found.set(FEED_KEYS.lease, "mine")
        yield found


def trimmer(client: Redis, nonce: str = "mine") -> Trimmer:
    return Trimmer(client, TrimScripts(client, shebang="#!lua\n"), prefix="poller", feed=FEED, nonce=nonce)


async def published(client: Redis, last: int, *, first: int = 1, size: int = 10) -> None:
    """Entries 1-0, 2-0 and so on, all of them old."""
    for number in range(first, last + 1):
        event = f'{{"sequence":"{number:020}","data":"{"x" * size}"}}'
        await client.xadd(EVENTS, {"data": event}, id=f"{number}-0")


async def left(client: Redis) -> list[int]:
    found: Any = await client.xrange(EVENTS)
    return [int(entry.partition(b"-")[0]) for entry, _ in found]


def known(pairs: Mapping[str, WatchedConsumer] = A) -> Callable[[], Awaitable[Mapping[str, WatchedConsumer]]]:
    async def answer() -> Mapping[str, WatchedConsumer]:
        return pairs

    return answer


async def trim(client: Redis, pairs: Mapping[str, WatchedConsumer] = A, rule: RetentionRule = AGED) -> int:
    return await trimmer(client).trim(rule, known(pairs), now=NOW)


async def delivering(client: Redis, *, read: int, settled: Settlement) -> ConsumerStore:
    """A consumer that has read this number of entries from the first on, and settled these."""
    store = ConsumerStore(
        client,
        ConsumerScripts(client),
        KEYS,
        events=EVENTS,
        subscription="a",
        nonce="n",
        lease=timedelta(seconds=30),
        clock=Clock(),
    )
    assert await store.lease.acquire() is None
    await store.open("earliest")
    await store.read(most=read)
    await store.settle(settled, now_ms=1)
    return store


def ids(first: int, last: int) -> list[str]:
    return [f"{number}-0" for number in range(first, last + 1)]


async def test_what_nobody_needs_goes_and_what_is_young_stays(client: Redis) -> None:
    """Law: without consumers all old entries are trimmed, and no young one."""
    await published(client, 250)
    young = await client.xadd(EVENTS, {"data": "{}"}, id=f"{int(NOW.timestamp() * 1000)}-0")
    assert await trim(client) == 250
    assert await client.xrange(EVENTS) == [(young, {b"data": b"{}"})]
    assert await trim(client) == 0


async def test_a_stream_that_is_not_there(client: Redis) -> None:
    """Law: trimming a stream that does not exist trims nothing and creates no key."""
    assert await trim(client) == 0
    assert await all_keys(client) == {FEED_KEYS.lease.encode()}


async def test_who_has_not_the_lease_takes_nothing(client: Redis) -> None:
    """Law: a process without the feed's lease trims nothing, neither by age nor by size."""
    await published(client, 20)
    for rule in (AGED, RetentionRule(timedelta(days=36500), 1000)):
        with pytest.raises(Fenced):
            await trimmer(client, "another's").trim(rule, known(), now=NOW)
    await client.delete(FEED_KEYS.lease)
    with pytest.raises(Fenced):
        await trim(client)
    assert len(await left(client)) == 20


async def test_unread_held_and_parked_entries_stay(client: Redis) -> None:
    """Law: entries stay from the first that a consumer has not read, not settled, or scheduled for a retry."""
    await published(client, 20)
    store = await delivering(client, read=10, settled=Settlement(acked=ids(1, 4) + ids(6, 10), parked={"2-0": b"{}"}))
    assert await trim(client) == 1
    await store.settle(Settlement(unparked=["2-0"]), now_ms=1)
    assert await trim(client) == 3
    await store.settle(Settlement(acked=["5-0"]), now_ms=1)
    assert await trim(client) == 6
    assert await left(client) == list(range(11, 21))


async def test_a_replay_keeps_what_it_has_not_done(client: Redis) -> None:
    """Law: entries that a replay still needs are not trimmed for their age until the replay is over."""
    await published(client, 9)
    await delivering(client, read=9, settled=Settlement(acked=ids(1, 9)))
    await start_replay(client, KEYS, ReplaySpan("r", "4-0", "6-0"))
    assert await trim(client) == 4
    assert await left(client) == [5, 6, 7, 8, 9]
    await cancel(client, KEYS)
    assert await trim(client) == 5


@pytest.mark.parametrize(
    ("one", "place", "stays"),
    [
        (WatchedConsumer(KEYS, earliest=True), None, 9),
        (WatchedConsumer(KEYS, new_after=before_moment(7)), None, 3),
        (WatchedConsumer(KEYS, new_after=before_moment(7)), "8-0", 1),
        (WatchedConsumer(KEYS), None, 0),
        (WatchedConsumer(KEYS), "3-0", 6),
        (WatchedConsumer(KEYS, earliest=True), "8-0", 1),
    ],
)
async def test_one_that_has_not_begun(client: Redis, one: WatchedConsumer, place: str | None, stays: int) -> None:
    """Law: a consumer without a group keeps the entries from its start position on."""
    await published(client, 9)
    if place:
        await client.hset(KEYS.state, "place", place)
    assert await trim(client, {"a": one}) == 9 - stays


async def test_other_groups_count(client: Redis) -> None:
    """Law: a group of no known subscription keeps the entries that it has not read and acknowledged."""
    await published(client, 9)
    await client.xgroup_create(EVENTS, "theirs", id="0")
    await client.xgroup_create(EVENTS, "sub:gone", id="5-0")
    assert await trim(client, {}) == 0
    await client.xreadgroup("theirs", "me", {EVENTS: ">"}, count=3)
    await client.xack(EVENTS, "theirs", "1-0", "3-0")
    assert await trim(client, {}) == 1
    await client.xreadgroup("theirs", "me", {EVENTS: ">"})
    await client.xack(EVENTS, "theirs", *ids(3, 8))
    await client.xdel(EVENTS, "2-0")
    assert await trim(client, {}) == 3
    assert await left(client) == [6, 7, 8, 9]


async def moved_back(client: Redis) -> None:
    await client.xgroup_create(EVENTS, "late", id="0")


async def replayed(client: Redis) -> None:
    await start_replay(client, KEYS, ReplaySpan("r", "4-0", "6-0"))


async def made_again(client: Redis) -> None:
    await client.xgroup_setid(EVENTS, "sub:a", "3-0")


async def begun_elsewhere(client: Redis) -> None:
    await client.xgroup_create(EVENTS, "sub:new", id="0")


async def read_and_not_acknowledged(client: Redis) -> None:
    """The group is at the end of the stream: only its pending entries show what it still needs."""
    await client.xgroup_create(EVENTS, "late", id="3-0")
    await client.xreadgroup("late", "me", {EVENTS: ">"})


@pytest.mark.parametrize(
    ("between", "stays"),
    [(moved_back, 9), (replayed, 5), (made_again, 6), (begun_elsewhere, 9), (read_and_not_acknowledged, 6)],
)
async def test_what_comes_between_the_look_and_the_cut(
    client: Redis, between: Callable[[Redis], Awaitable[None]], stays: int
) -> None:
    """Law: a group or replay that appears, reads or moves back between look and trim loses no entry."""
    await published(client, 9)
    await delivering(client, read=9, settled=Settlement(acked=ids(1, 9)))
    looking = Late(client, between)
    assert await looking.trim(AGED, known(), now=NOW) == 9 - stays
    assert looking.asked


class Late(Trimmer):
    """A trimmer in which something happens just before the first trim."""

    def __init__(self, client: Redis, between: Callable[[Redis], Awaitable[None]]) -> None:
        scripts = TrimScripts(client)
        super().__init__(client, scripts, prefix="poller", feed=FEED, nonce="mine")
        self.asked = 0
        script = scripts.trim

        async def late(keys: list[str], arguments: list[str | int]) -> object:
            self.asked += 1
            if self.asked == 1:
                await between(client)
            return await script(keys, arguments)

        scripts.trim = late  # type: ignore[assignment] # called as a script is


async def test_a_stream_that_is_too_large_loses_its_oldest(client: Redis) -> None:
    """Law: after the trim the stream fits; all that a consumer lost is in one dead letter, which grows."""
    rule = RetentionRule(timedelta(days=36500), 100_000)
    await published(client, 300, size=1000)
    await delivering(client, read=10, settled=Settlement(acked=ids(1, 10)))
    gone = await trim(client, rule=rule)
    assert (await client.memory_usage(EVENTS, samples=0) or 0) <= rule.max_bytes
    entries = await left(client)
    assert (len(entries), entries[-1]) == (300 - gone, 300)
    letter = letter_of(await client.hget(KEYS.letters, "0-1") or b"")
    assert letter.overrun == Overrun("11-0", f"{entries[0]}-0", entries[0] - 11, 11, entries[0] - 1)
    assert await client.hget(KEYS.state, "lost") == str(entries[0] - 11).encode()
    await published(client, 400, first=301, size=1000)
    await trim(client, rule=rule)
    entries = await left(client)
    letter = letter_of(await client.hget(KEYS.letters, "0-1") or b"")
    assert letter.overrun == Overrun("11-0", f"{entries[0]}-0", entries[0] - 11, 11, entries[0] - 1)
    assert await client.zcard(KEYS.letter_times) == await client.hlen(KEYS.letters) == 1


async def test_who_lost_nothing_is_told_nothing(client: Redis) -> None:
    """Law: entries that no consumer needs are trimmed for size without a report."""
    await published(client, 100, size=1000)
    await delivering(client, read=100, settled=Settlement(acked=ids(1, 100)))
    assert await trim(client, rule=RetentionRule(timedelta(days=36500), 20_000)) > 70
    assert await client.exists(FEED_KEYS.overruns, KEYS.letters) == 0


async def test_told_once_an_episode(client: Redis) -> None:
    """Law: an overrun is reported once for each group, until the group has passed the entries of that time."""
    rule, trimming = RetentionRule(timedelta(days=36500), 50_000), trimmer(client)
    await published(client, 100, size=1000)
    store = await delivering(client, read=5, settled=Settlement(acked=ids(1, 5)))
    await client.xgroup_create(EVENTS, "theirs", id="0")
    await trimming.trim(rule, known(), now=NOW)
    found = {one.name: one for one in await trimming.unannounced()}
    assert {name: (one.subscription, one.first, one.sequence) for name, one in found.items()} == {
        "sub:a": ("a", "6-0", 6),
        "theirs": (None, "1-0", 1),
    }
    for one in found.values():
        await trimming.mark_announced(one)
    await published(client, 150, first=101, size=1000)
    await trimming.trim(rule, known(), now=NOW)
    assert await trimming.unannounced() == []
    await store.read(most=1000)
    await published(client, 250, first=151, size=1000)
    await trimming.trim(rule, known(), now=NOW)
    assert [one.name for one in await trimming.unannounced()] == ["sub:a"]
    assert sorted(await client.hkeys(KEYS.letters)) == [b"0-1", b"0-2"]
    await client.xgroup_destroy(EVENTS, "theirs")
    await published(client, 350, first=251, size=1000)
    await trimming.trim(rule, known(), now=NOW)
    assert await client.hkeys(FEED_KEYS.overruns) == [b"sub:a"]


async def test_an_episode_that_was_dropped_is_told_anew(client: Redis) -> None:
    """Law: after its dead letter was dropped, a further overrun is reported with a new one."""
    rule, trimming = RetentionRule(timedelta(days=36500), 50_000), trimmer(client)
    await published(client, 100, size=1000)
    for first in (101, 201):
        await trimming.trim(rule, known({"a": WatchedConsumer(KEYS, earliest=True)}), now=NOW)
        (found,) = await trimming.unannounced()
        await trimming.mark_announced(found)
        await client.delete(KEYS.letters, KEYS.letter_times)
        await published(client, first + 99, first=first, size=1000)


async def test_a_subscription_that_was_removed_during_the_trim_keeps_no_dead_letter(client: Redis) -> None:
    """Law: a trim by size that knew a subscription which is removed meanwhile leaves no key of it."""
    await published(client, 100, size=1000)
    rule, asked = RetentionRule(timedelta(days=36500), 50_000), 0

    async def removed_after_the_first() -> Mapping[str, WatchedConsumer]:
        nonlocal asked
        asked += 1
        return {"a": WatchedConsumer(KEYS, earliest=True)} if asked == 1 else {}

    assert await trimmer(client).trim(rule, removed_after_the_first, now=NOW) > 40
    assert await client.exists(KEYS.state, KEYS.letters, KEYS.letter_times) == 0


async def test_what_another_of_its_id_has_begun_stays(client: Redis) -> None:
    """Law: what has begun at the feed, or is delivered by a process, keeps its dead letters; so without the lease."""
    await published(client, 100, size=1000)
    known_pair = known({"a": WatchedConsumer(KEYS, earliest=True)})
    await trimmer(client).trim(RetentionRule(timedelta(days=36500), 50_000), known_pair, now=NOW)
    await forget_unbegun(client, FEED_KEYS, KEYS, "a", nonce="another's")
    await client.hset(KEYS.state, "place", "5-0")
    await forget_unbegun(client, FEED_KEYS, KEYS, "a", nonce="mine")
    await client.hdel(KEYS.state, "place")
    await client.set(KEYS.lease, "another's")
    await forget_unbegun(client, FEED_KEYS, KEYS, "a")
    await client.delete(KEYS.lease)
    await client.xgroup_create(EVENTS, "sub:a", id="0")
    await forget_unbegun(client, FEED_KEYS, KEYS, "a")
    assert await client.hlen(KEYS.letters) == 1
    await client.xgroup_destroy(EVENTS, "sub:a")
    await forget_unbegun(client, FEED_KEYS, KEYS, "a")
    assert await client.exists(KEYS.state, KEYS.letters, KEYS.letter_times) == 0


async def test_a_replay_that_loses_what_it_was_to_bring(client: Redis) -> None:
    """Law: entries that a replay loses are reported as the replay's, and no others are."""
    await published(client, 100, size=1000)
    await delivering(client, read=100, settled=Settlement(acked=ids(1, 100)))
    await start_replay(client, KEYS, ReplaySpan("r", "10-0", "20-0"))
    await trim(client, rule=RetentionRule(timedelta(days=36500), 50_000))
    (found,) = await trimmer(client).unannounced()
    assert (found.replay, found.subscription, found.sequence, found.last_sequence) == (True, "a", 11, 20)
    assert found.events == 10
    letter = letter_of(await client.hget(KEYS.letters, "0-1") or b"")
    assert "once more" in letter.reason


async def test_a_stream_smaller_than_one_event(client: Redis) -> None:
    """Law: if not even one event fits, the stream is emptied and trimming ends."""
    await published(client, 3, size=5000)
    await client.hset(FEED_KEYS.state, "sequence", "3")
    await trim(client, {"a": WatchedConsumer(KEYS, earliest=True)}, RetentionRule(timedelta(days=36500), 1024))
    assert await left(client) == []
    letter = letter_of(await client.hget(KEYS.letters, "0-1") or b"")
    assert letter.overrun == Overrun("1-0", None, 3, 1, 3)


async def test_entries_that_others_wrote(client: Redis) -> None:
    """Law: entries of other programs have no sequence number, and are trimmed like all others."""
    for number in range(1, 101):
        await client.xadd(EVENTS, {"x": "y" * 1000}, id=f"{number}-0")
    await trim(client, {"a": WatchedConsumer(KEYS, earliest=True)}, RetentionRule(timedelta(days=36500), 50_000))
    first = (await left(client))[0]
    letter = letter_of(await client.hget(KEYS.letters, "0-1") or b"")
    assert letter.overrun == Overrun("1-0", f"{first}-0", first - 1, None, None)


async def test_a_server_that_is_out_of_memory(server: str) -> None:
    """Law: a server that is out of memory still trims."""
    async with commands(server) as client:
        await client.set(FEED_KEYS.lease, "mine")
        await published(client, 100, size=1000)
        used = (await client.info("memory"))["used_memory"]
        await client.config_set("maxmemory", used // 2)
        try:
            assert await trim(client, {}) == 100
        finally:
            await client.config_set("maxmemory", 0)


# Properties: needed entries stay, others go, and the size limit comes first.

PLACES = st.builds(EntryId, st.integers(0, 6), st.sampled_from([0, 1, 2, 2**64 - 1]))
STREAMS = st.sets(PLACES.filter(lambda place: place > (0, 0)), min_size=1)
DONE = st.dictionaries(st.sampled_from("abc"), PLACES)
SMALL = 10


def left_after(entries: set[EntryId], done: dict[str, EntryId], oldest: EntryId, size: int = SMALL) -> set[EntryId]:
    """The entries left after all steps of trimming by age."""
    while True:
        stream = StreamExtent(len(entries), size, min(entries, default=None))
        step = next_step(stream, done, oldest=oldest, max_bytes=SMALL)
        if not isinstance(step, TrimUpTo):
            return entries
        entries = {entry for entry in entries if entry > step.last}


@given(STREAMS, DONE, PLACES)
def test_what_is_needed_or_young_stays_and_all_else_goes(
    entries: set[EntryId], done: dict[str, EntryId], oldest: EntryId
) -> None:
    """Law: the old entries before all consumers' positions are trimmed, and no others; a second trim does nothing."""
    stays = {entry for entry in entries if entry >= oldest or any(entry > place for place in done.values())}
    found = left_after(entries, done, oldest)
    assert found == {entry for entry in entries if stays and entry >= min(stays)}
    assert left_after(found, done, oldest) == found


@given(STREAMS, DONE, PLACES, PLACES, st.sampled_from("abc"))
def test_who_goes_forward_keeps_less(
    entries: set[EntryId], done: dict[str, EntryId], oldest: EntryId, place: EntryId, name: str
) -> None:
    """Law: consumers further on and a later time keep fewer entries; an additional consumer never keeps fewer."""
    found = left_after(entries, done, oldest)
    further = done | {name: max(place, done[name])} if name in done else done
    assert left_after(entries, further, max(oldest, place)) <= found
    assert left_after(entries, done | {"new": place}, oldest) >= found


@given(STREAMS, DONE, PLACES, st.integers(SMALL + 1, 10_000))
def test_size_has_the_last_word(entries: set[EntryId], done: dict[str, EntryId], oldest: EntryId, size: int) -> None:
    """Law: a stream that is too large is trimmed, needed or not, once none can go for age; one that fits is not."""
    entries = left_after(entries, done, oldest, size)
    stream = StreamExtent(len(entries), size, min(entries, default=None))
    step = next_step(stream, done, oldest=oldest, max_bytes=SMALL)
    assert (step is not None) == bool(entries)
    if step is not None:
        assert isinstance(step, TrimToLength)
        assert 0 <= step.entries < stream.length
    fits = StreamExtent(stream.length, SMALL, stream.first)
    assert next_step(fits, done, oldest=oldest, max_bytes=SMALL) is None


@given(STREAMS, DONE, PLACES, st.integers(0, 2 * SMALL))
def test_nothing_is_asked_where_nothing_may_go(
    entries: set[EntryId], done: dict[str, EntryId], oldest: EntryId, size: int
) -> None:
    """Law: a stream within its limits needs no request, whatever its consumers need."""
    stream = StreamExtent(len(entries), size, min(entries))
    if not pressing(stream, oldest=oldest, max_bytes=SMALL):
        assert next_step(stream, done, oldest=oldest, max_bytes=SMALL) is None


@given(STREAMS, DONE, PLACES)
def test_who_holds_the_stream_is_named(entries: set[EntryId], done: dict[str, EntryId], oldest: EntryId) -> None:
    """Law: the consumer that holds back a trim is named if and only if the first entry is old enough."""
    entries = left_after(entries, done, oldest)
    first = min(entries, default=None)
    name = holder(StreamExtent(len(entries), SMALL, first), done, oldest=oldest)
    assert (name is not None) == (first is not None and first < oldest)
    assert name is None or done[name] == min(done.values())
