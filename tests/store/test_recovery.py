"""High-water marks noted by other processes, and where consumers start after a loss."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, cast

import msgspec
import pytest
from fakeredis import FakeAsyncRedis
from redis.asyncio import Redis

from poller.clock import Clock
from poller.redis.client import commands
from poller.store.commands import RoundRequest, request_round
from poller.store.consumer_state import ConsumerScripts, ConsumerStore
from poller.store.feed_state import ANEW_AT, DELTA_TOKEN, LOST, LOST_AT, READ_AT, FeedState
from poller.store.keys import ConsumerKeys, FeedKeys, remembered_key
from poller.store.recovery import (
    BEGINNING,
    ORDER,
    STREAM,
    FeedMemory,
    HighWaterMark,
    StartPosition,
    high_water_marks,
    is_announced,
    known_feeds,
    last_entries,
    loss_marks,
    loss_of,
    overhear,
)
from poller.store.stream import EntryId, before_moment
from tests.harness.clock import StubClock
from tests.store.test_feed import KEYS, begun
from tests.store.test_lost_parts import FEED, Process, gone
from tests.stores import flushed

_KEY = "poller:{operations}:remembered"
_NOTED = HighWaterMark("g1", 5)


class _Store:
    def __init__(self, *, held: bool, known: HighWaterMark | None = None) -> None:
        self.held = held
        self.memory = FeedMemory(clock=Clock())
        self.memory.known = known


async def _heard(client: Redis, *, looks: int = 1, **stores: _Store) -> list[float]:
    """Run this number of looks at the notes; returns the pauses before each look and after the last."""
    stop = asyncio.Event()
    pauses: list[float] = []

    async def pause(_stop: asyncio.Event, seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) > looks:
            stop.set()

    await overhear(stop, client, _KEY, stores.items(), clock=StubClock(wait=pause))
    return pauses


async def test_looks_are_close_at_first(client: Redis) -> None:
    """Law: each pause is a quarter longer, up to a minute; up to 5 s while a feed of another process is unknown."""
    pauses = await _heard(client, looks=60, known=_Store(held=False, known=_NOTED), ours=_Store(held=True))
    assert pauses[:2] == [0.1, 0.125]
    assert pauses[-1] == 60.0
    assert (await _heard(client, looks=60, unknown=_Store(held=False)))[-1] == 5.0


async def test_what_is_known_here_alone_is_noted_again(client: Redis) -> None:
    """Law: a mark that only this process knows is noted again; an existing note is not overwritten."""
    further = HighWaterMark("g1", 9)
    await client.hset(_KEY, "kept", msgspec.json.encode(further))
    stores: dict[str, Any] = {name: _Store(held=name != "theirs", known=_NOTED) for name in ("lost", "theirs", "kept")}
    for name, store in stores.items():
        store.memory = FeedMemory(client, _KEY, name, clock=Clock())
        store.memory.known = _NOTED
    await _heard(client, **stores)
    assert await high_water_marks(client, _KEY) == {"lost": _NOTED, "theirs": _NOTED, "kept": further}
    await stores["kept"].memory.remind()  # as if the note had been written just after the look
    assert (await high_water_marks(client, _KEY))["kept"] == further


async def test_feeds_of_others_are_known(client: Redis) -> None:
    """Law: notes of feeds held elsewhere are read; missing and unreadable notes are unknown."""
    for feed, noted in {
        "theirs": msgspec.json.encode(_NOTED),
        "ours": msgspec.json.encode(_NOTED),
        "odd": b"?",
    }.items():
        await client.hset(_KEY, feed, noted)
    theirs, ours, odd, unknown = (_Store(held=held) for held in (False, True, False, False))
    await _heard(client, theirs=theirs, ours=ours, odd=odd, unknown=unknown)
    assert theirs.memory.known == _NOTED
    assert (ours.memory.known, odd.memory.known, unknown.memory.known) == (None, None, None)


async def test_notes_that_are_gone_take_nothing_away(client: Redis) -> None:
    """Law: a mark stays known after its note is lost."""
    theirs = _Store(held=False, known=_NOTED)
    await _heard(client, theirs=theirs)
    assert theirs.memory.known == _NOTED


async def test_only_what_goes_further_counts() -> None:
    """Law: a known mark is replaced only by a later event or a later loss of the same feed."""
    for known, noted, expected in (
        (None, HighWaterMark("g1", 5), "g1"),
        (HighWaterMark("g1", 5), HighWaterMark("g1", 9), "further"),
        (HighWaterMark("g1", 9), HighWaterMark("g1", 5), "known"),
        (HighWaterMark("g1", 9), HighWaterMark("g2", 1, ("g1",), 1), "further"),
        (HighWaterMark("g1", 9), HighWaterMark("x", 99, (), 7), "known"),
    ):
        memory = FeedMemory(clock=Clock())
        memory.known = known
        memory.overheard(noted)
        assert memory.known == (known if expected == "known" else noted)


async def test_what_another_has_told_is_not_told_again_after_the_next_loss(client: Redis) -> None:
    """Law: a process that finds an already reported loss counts it in its own note."""
    told = HighWaterMark("g2", 1, ("g1",), losses=1)
    await client.hset(_KEY, "f", msgspec.json.encode(told))
    memory = FeedMemory(client, _KEY, "f", clock=Clock())
    memory.known = HighWaterMark("g1", 5)
    state = FeedState("g2", 1, formers=("g1",))
    assert await memory.loss(state, "") is None
    memory.begun(state, "")
    assert memory.known == told
    await memory.save()
    assert await high_water_marks(client, _KEY) == {"f": told}


# Where an unknown consumer starts, and which baselines are new to it: on the simulated store, Valkey and Redis.

PAIR = ConsumerKeys.of("poller", FEED, "a")
NOW = int(time.time() * 1000)
HOUR = 3_600_000
Start = Literal["now", "earliest"]


@pytest.fixture
async def real(any_store: str) -> AsyncIterator[Redis]:
    """A client of an empty server, of each kind."""
    client = commands(any_store)
    yield client
    await client.aclose()


def beginning(client: Redis, *, subscribed: int, asked: int = 0) -> StartPosition:
    return StartPosition(client, PAIR, KEYS.events, KEYS.state, moment(subscribed), asked, before_moment(asked))


def moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=milliseconds)


def pair(client: Redis, *, subscribed: int, asked: int = 0) -> ConsumerStore:
    return ConsumerStore(
        client,
        ConsumerScripts(client, shebang="#!lua\n"),
        PAIR,
        events=KEYS.events,
        subscription="a",
        nonce="n",
        lease=timedelta(seconds=60),
        feed_state=KEYS.state,
        since=moment(subscribed),
        asked=asked,
        new_after=before_moment(asked),
        clock=Clock(),
    )


async def opened(client: Redis, start: Start, *, subscribed: int, asked: int = 0) -> ConsumerStore:
    """A feed consumer with its lease and its group."""
    found = pair(client, subscribed=subscribed, asked=asked)
    await found.lease.acquire()
    await found.open(start)
    return found


async def told(found: ConsumerStore) -> int:
    """How many of the entries that the consumer reads are new to it; all entries are of baselines."""
    entries = await found.read(most=100)
    anew = await found.reset_entry()
    return sum(anew is None or EntryId.parse(entry) <= EntryId.parse(anew) for entry, _ in entries)


async def set_back(client: Redis, hours: int) -> None:
    """Move the feed's marks forward, as if the server's clock had been ahead when the feed was reset."""
    for name in ("anew_at", "begun_at"):
        await client.hincrby(KEYS.state, name, hours * HOUR)


@pytest.mark.parametrize("start", ["now", "earliest"])
@pytest.mark.parametrize(
    ("anew", "subscribed", "lost"),
    [
        (None, NOW - HOUR, False),
        (NOW - HOUR, NOW - 2 * HOUR, True),
        (NOW - 2 * HOUR, NOW - HOUR, False),
        (NOW - 48 * HOUR, NOW - 96 * HOUR, False),
    ],
    ids=["never lost", "lost with its feed", "younger than the loss", "long after the loss"],
)
@pytest.mark.parametrize("after", [None, "5-3"], ids=["by an older version", "by this one"])
async def test_who_was_lost_with_its_feed_begins_where_that_does(
    store_client: Redis, start: Start, after: str | None, anew: int | None, subscribed: int, *, lost: bool
) -> None:
    """Law: a consumer lost with its feed starts at the feed's reset; a new one at its start setting."""
    last = (await store_client.xadd(KEYS.events, {"data": "{}"})).decode()  # type: ignore[union-attr] # bytes, as the client is set up
    begun_at = {} if after is None else {"begun_at": str(anew), "begun_after": after}
    since = {} if anew is None else {"anew_at": str(anew)} | begun_at
    state: Any = {"generation": "g"} | since
    await store_client.hset(KEYS.state, mapping=state)
    found, name = await beginning(store_client, subscribed=subscribed).place(start)
    if lost and anew is not None:
        assert (found, name) == (after or f"{anew - 1}-18446744073709551615", "")
    else:
        assert found == (last if start == "now" else "0-0")
        assert name == ("g" if after or anew is None else f"g@{anew}")


async def test_a_baseline_is_old_news_to_pairs_that_are_older(store_client: Redis) -> None:
    """Law: a consumer skips a baseline of a reset after its start; if the start is unknown, its age decides."""
    one = beginning(store_client, subscribed=NOW - 3 * HOUR)
    assert await one.reset_entry() is None
    await store_client.hset(
        KEYS.state, mapping={"generation": "g", "anew_at": str(NOW), "begun_at": str(NOW), "begun_after": "7-0"}
    )
    assert await one.reset_entry() == "7-0"
    for name, anew in (("g", None), ("f", "7-0"), ("", "7-0")):
        await store_client.hset(PAIR.state, BEGINNING, name)
        assert await one.reset_entry() == anew
    assert await StartPosition(store_client, PAIR, KEYS.events).reset_entry() is None


@pytest.mark.parametrize("start", ["now", "earliest"])
async def test_who_has_not_begun_is_not_lost_with_a_reset_that_an_operator_wanted(real: Redis, start: Start) -> None:
    """Law: a consumer that has not begun gets what it waits for, and the reading after a reset that was ordered."""
    one = Process(real, "a")
    await one.round(1)
    seconds, microseconds = await real.time()
    asked = seconds * 1000 + microseconds // 1000 - 1  # before the reset, however fast this is
    await one.round(2, 3)
    await request_round(real, KEYS, RoundRequest.ANEW)
    await one.round(1, 2, 3)
    there = await opened(real, start, subscribed=asked, asked=asked)
    entries = await there.read(most=10)
    assert len(entries) == 6 if start == "earliest" else len(entries) >= 5
    assert await there.reset_entry() is None
    await request_round(real, KEYS, RoundRequest.ANEW)
    await one.round(1, 2, 3)
    assert await told(there) == 0  # it has begun by now


@pytest.mark.parametrize("begins", ["before the feed", "with it", "after a reset"])
@pytest.mark.parametrize("resets", [1, 2, 12])
async def test_who_did_not_read_between_resets_gets_the_reading_of_none(real: Redis, begins: str, resets: int) -> None:
    """Law: a consumer gets the baselines from before the first reset since its beginning, and none of later ones."""
    one = Process(real, "a")

    async def reset() -> None:
        await request_round(real, KEYS, RoundRequest.ANEW)
        await one.round(0, 1, 2)

    if begins != "before the feed":
        await one.round(0)
    if begins == "after a reset":
        await reset()
    there = await opened(real, "earliest", subscribed=NOW - HOUR)
    await one.round(0, 1, 2, reason="owed")
    owed = await real.xlen(KEYS.events)
    for _ in range(resets):
        await reset()
    assert await told(there) == owed


@pytest.mark.parametrize(
    ("resets", "expected"),
    [("g=9-0 f=7-0 e=5-0 ", "7-0"), ("g=9-0 ", "9-0"), ("", "9-0"), ("g f=soon e=1-0", "9-0"), ("e=1-0", "9-0")],
)
async def test_a_reset_that_is_not_known_any_more_is_none(store_client: Redis, resets: str, expected: str) -> None:
    """Law: of the resets that can be read, the first since the consumer's beginning counts, else the last one."""
    state = {"generation": "g", "anew_at": "9", "begun_at": "9", "begun_after": "9-0", "formers": "f e d"}
    await store_client.hset(KEYS.state, mapping=dict[Any, Any](state | {"resets": resets}))
    await store_client.hset(PAIR.state, BEGINNING, "e")
    one = beginning(store_client, subscribed=NOW)
    assert await one.reset_entry() == expected
    await store_client.hset(PAIR.state, BEGINNING, "unknown")
    assert await one.reset_entry() == "9-0"


async def test_resets_are_kept_whole(store_client: Redis) -> None:
    """Law: the state keeps as many resets as fit, and no part of one: its entry would be another."""
    one = Process(store_client, "a")
    await one.round(1)
    await store_client.hset(KEYS.state, "resets", "0123456789abcdef=1735689600000-0 " * 12)
    await request_round(store_client, KEYS, RoundRequest.ANEW)
    await one.round(1)
    first, *others = cast("bytes", await store_client.hget(KEYS.state, "resets")).decode().split()
    assert (first.partition("=")[0], len(others)) == ("a1", 11)
    assert set(others) == {"0123456789abcdef=1735689600000-0"}


@pytest.mark.parametrize("kind", ["lost", "replaced"])
async def test_who_is_lost_after_a_reset_that_an_operator_wanted_begins_where_its_feed_does(
    real: Redis, kind: str
) -> None:
    """Law: a later loss of the feed counts for its consumers as if no operator had reset it before."""
    one = Process(real, "a")
    await one.round(1)
    await request_round(real, KEYS, RoundRequest.ANEW)
    await one.round(1)
    assert (await beginning(real, subscribed=NOW - HOUR).place("earliest"))[0] == "0-0"
    if kind == "lost":
        await gone(real, KEYS.snapshots)
        await one.round(1)
    else:
        await real.hset(KEYS.state, ANEW_AT, str(NOW - 1))  # as in the state of a replaced feed
    found, name = await beginning(real, subscribed=NOW - HOUR).place("earliest")
    assert (found != "0-0", name) == (True, "")


@pytest.mark.parametrize("hours", [0, -1, 1], ids=["as it was", "an hour ahead", "an hour behind"])
async def test_who_was_there_is_told_no_baseline_of_what_was_begun_anew(real: Redis, hours: int) -> None:
    """Law: an existing consumer gets no baseline of a reset, whatever the store's clock shows."""
    one = Process(real, "a")
    await one.round(1)
    there = await opened(real, "earliest", subscribed=NOW - 3 * HOUR)
    assert await told(there) == 1
    for _ in range(2):
        await request_round(real, KEYS, RoundRequest.ANEW)
        await one.round(1)
        await set_back(real, -hours)
        assert await told(there) == 0


async def test_a_baseline_that_was_not_delivered_yet_is_owed_all_the_same(real: Redis) -> None:
    """Law: a baseline from before a reset is still delivered, also if the clock was set back."""
    ahead = NOW + HOUR
    await real.xadd(KEYS.events, {"data": '{"sequence":"00000000000000000000"}'}, id=f"{ahead}-0")
    one = Process(real, "a")
    await one.round(1, 2)
    there = await opened(real, "earliest", subscribed=ahead + HOUR)
    await request_round(real, KEYS, RoundRequest.ANEW)
    await begun(one.store)
    assert await told(there) == 3


async def test_a_pair_that_was_lost_reads_all_since_whatever_the_clock(real: Redis) -> None:
    """Law: a lost consumer reads all entries since the reset, even if the clock was set back."""
    one = Process(real, "a")
    await one.round(1)
    await flushed(real)
    await begun(one.store)
    await set_back(real, 1)
    await one.round(1, 2)
    await one.round(1, reason="a change")
    there = await opened(real, "earliest", subscribed=NOW - HOUR)
    assert len(await there.read(most=10)) == 3


async def test_no_place_is_beyond_the_end_of_the_stream(store_client: Redis) -> None:
    """Law: a start position never lies beyond the stream's end, even if the clock was set back."""
    state = {"generation": "g", "anew_at": str(NOW), "begun_at": str(NOW), "begun_after": f"{NOW}-0"}
    await store_client.hset(KEYS.state, mapping=dict[Any, Any](state))
    await store_client.xadd(KEYS.events, {"data": "{}"}, id="5-0")
    assert (await beginning(store_client, subscribed=NOW - HOUR).place("now"))[0] == "5-0"


@pytest.mark.parametrize(("subscribed", "later"), [(NOW + 24 * HOUR, 0), (NOW - HOUR, 24)], ids=["back", "ahead"])
@pytest.mark.parametrize("start", ["now", "earliest"])
async def test_who_was_there_is_older_than_a_reset_though_the_clock_was_set(
    store_client: Redis, start: Start, subscribed: int, later: int
) -> None:
    """Law: a consumer that lives on gets no baseline of a loss, though the store's clock was set by a day."""
    one = Process(store_client, "a")
    await one.round(1)
    there = await opened(store_client, start, subscribed=subscribed, asked=subscribed)
    assert await told(there) == (1 if start == "earliest" or subscribed < NOW else 0)
    await flushed(store_client)
    await one.round(1, 2)
    await set_back(store_client, -later)
    await there.lease.acquire()
    await there.open(start)
    assert await told(there) == 0
    await one.round(1, reason="a change")
    assert len(await there.read(most=10)) == 1


async def test_a_pair_that_is_lost_again_before_its_feed_is_begun_misses_nothing(real: Redis) -> None:
    """Law: a consumer lost twice misses no event, even if its earlier start is ahead of the clock."""
    one = Process(real, "a")
    await one.round(1)
    await flushed(real)
    await one.round(1)
    await set_back(real, 1)
    there = await opened(real, "now", subscribed=NOW - HOUR)
    await flushed(real)
    await there.lease.acquire()
    await there.open("now")
    await one.round(1)
    await one.round(1, reason="a change")
    assert len(await there.read(most=10)) == 2


async def test_what_is_read_before_a_loss_is_as_old_after_it(real: Redis) -> None:
    """Law: entries read before a loss still count as older than it afterwards."""
    one = Process(real, "a")
    await one.round(1)
    await (await opened(real, "earliest", subscribed=NOW - HOUR)).lease.release()
    await request_round(real, KEYS, RoundRequest.ANEW)
    await one.round(1)
    there = await opened(real, "earliest", subscribed=NOW - HOUR)
    assert len(await there.read(most=10)) == 2
    await flushed(real)
    assert await there.reset_entry() is not None


async def test_of_another_installations_feed_no_baseline_is_told(real: Redis) -> None:
    """Law: the baseline over another installation's data is not delivered."""
    one = Process(real, "a")
    await one.round(1)
    there = await opened(real, "earliest", subscribed=NOW - 3 * HOUR)
    assert await told(there) == 1
    await real.hset(KEYS.state, "anew_at", str(NOW - HOUR))  # as in the state of a replaced feed
    assert await there.reset_entry() == f"{NOW - HOUR - 1}-18446744073709551615"


async def test_the_stores_clock_says_who_is_older(store_client: Redis) -> None:
    """Law: a subscription's age counts by the store's clock if known, not by the clock of a process."""
    await store_client.hset(KEYS.state, mapping={"generation": "g", "anew_at": str(NOW - HOUR)})
    _, name = await beginning(store_client, subscribed=NOW - 2 * HOUR, asked=NOW).place("earliest")
    assert name == f"g@{NOW - HOUR}"
    _, name = await beginning(store_client, subscribed=NOW, asked=NOW - 2 * HOUR).place("earliest")
    assert name == ""


@pytest.mark.parametrize("mark", ["anew_at", "begun_at", "begun_after", "ordered_at"])
@pytest.mark.parametrize("value", ["", "soon", "-1", "1-x", "9" * 5000])
async def test_a_mark_that_cannot_be_read_stops_no_delivery(store_client: Redis, mark: str, value: str) -> None:
    """Law: an unreadable mark counts as unknown, and the start position misses no entry."""
    began: Any = {"generation": "g", "anew_at": str(NOW - HOUR), "begun_at": str(NOW - HOUR), "begun_after": "5-3"}
    await store_client.xadd(KEYS.events, {"data": "{}"}, id="1000-0")
    await store_client.hset(KEYS.state, mapping=began | {mark: value})
    found, _ = await beginning(store_client, subscribed=NOW - 2 * HOUR).place("earliest")
    assert EntryId.parse(found) <= EntryId.parse("1000-0")


@pytest.mark.parametrize(
    ("asked", "expected"),
    [(0, "2000-0"), (500, "499"), (1500, "1499"), (2000, "1999"), (2001, "2000-0")],
    ids=["not known", "before all", "between", "in the last's millisecond", "a clock that was put back"],
)
async def test_what_was_published_since_it_was_asked_for_is_new(store_client: Redis, asked: int, expected: str) -> None:
    """Law: a consumer starts with the events after its subscription, however late its delivery begins."""
    for entry in ("1000-0", "2000-0"):
        await store_client.xadd(KEYS.events, {"data": "{}"}, id=entry)
    after = before_moment(asked)
    place, _ = await StartPosition(store_client, PAIR, KEYS.events, KEYS.state, new_after=after).place("now")
    assert place == (expected if "-" in expected else f"{expected}-18446744073709551615")
    assert (await StartPosition(store_client, PAIR, KEYS.events, new_after=after).place("earliest"))[0] == "0-0"


async def test_the_last_entries_of_the_feeds(real: Redis) -> None:
    """Law: each known stream with entries has its last one, also a deleted one; an unusable stream stops nothing."""
    there = {name: FeedKeys.of("poller", name).events for name in ("a/noted", "a/named", "a/odd", "a/new")}
    for name in ("a/noted", "a/named"):
        await real.xadd(there[name], {"data": "{}"}, id="4-1")
    await real.xdel(there["a/named"], "4-1")
    await real.set(there["a/odd"], "x")
    await real.hset(remembered_key("poller"), "a/noted", "{}")
    found = await last_entries(real, "poller", ("a/named", "a/odd", "a/new"))
    assert found == {"": "0-0", "a/noted": "4-1", "a/named": "4-1", "a/odd": ""}
    await real.set(remembered_key("poller"), "x")
    found = await last_entries(real, "poller", ("a/named", "a/odd", "a/new"))
    assert found == {"": "", "a/named": "4-1", "a/new": "0-0"}


class Meanwhile(FakeAsyncRedis):
    """A store in which a feed is reset and publishes after the first read of its state or stream."""

    asked = 0

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        answer = await super().execute_command(*args, **options)  # type: ignore[no-untyped-call] # redis-py's has no types
        if str(args[0]) in ("HMGET", "XREVRANGE", "XINFO STREAM"):
            self.asked += 1
            if self.asked == 1:
                state = {"generation": "g", "anew_at": str(NOW), "begun_at": str(NOW), "begun_after": "5-0"}
                await self.hset(KEYS.state, mapping=dict[Any, Any](state))
                await self.xadd(KEYS.events, {"data": "{}"}, id="6-0")
        return answer


async def test_a_feed_that_is_begun_while_a_pair_begins_loses_it_nothing() -> None:
    """Law: events published while the start position is determined come after that position."""
    async with Meanwhile() as client:
        await client.xadd(KEYS.events, {"data": "{}"}, id="5-0")
        found, _ = await beginning(client, subscribed=NOW - HOUR).place("now")
        assert client.asked >= 2
        assert EntryId.parse(found) <= (5, 0)


# The state found against the mark known: a table.

KNOWN = HighWaterMark("g2", 10, ("g1",))


@pytest.mark.parametrize(
    ("state", "found", "kind"),
    [
        (FeedState("g2", 10), "", None),
        (FeedState("g2", 11), "", None),
        (FeedState("g2", 9), "", "rolled back"),
        (FeedState("g1", 50), "", "rolled back"),
        (FeedState("g3", 10, formers=("g2", "g1")), "", "lost"),
        (FeedState("g3", 10, formers=("g2", "g1")), "snapshots", "lost"),
        (FeedState("g3", 10, formers=("g2", "g1")), ORDER, None),
        (FeedState("g3", 10, formers=("g2", "g1"), begun_at=7, ordered_at=7), "", None),
        (FeedState("g3", 9, formers=("g2", "g1"), begun_at=7, ordered_at=7), "", "lost"),
        (FeedState("g3", 10, formers=("g2", "g1"), begun_at=8, ordered_at=7), "", "lost"),
        (FeedState("g4", 10, formers=("h3", "g2"), begun_at=7, ordered_at=7), "", "lost"),
        (FeedState("h3", 10, formers=("h2", "g1")), "", "lost"),
        (FeedState("x", 10, formers=("y",)), "", "replaced"),
        (FeedState("x", 99), "", "replaced"),
        (FeedState("g2", 10), STREAM, "lost"),
    ],
)
def test_what_is_found_against_what_was_known(state: FeedState, found: str, kind: str | None) -> None:
    """Law: generation, former generations and sequence tell what happened to a feed."""
    loss = loss_of(KNOWN, state, found)
    assert (loss.kind if loss else None) == kind
    if loss:
        assert (loss.former, loss.former_sequence, loss.generation) == ("g2", 10, state.generation)


@pytest.mark.parametrize(("found", "kind"), [("", None), ("new", None), ("snapshots", "lost"), (STREAM, "lost")])
def test_without_a_memory_only_what_is_missing_tells(found: str, kind: str | None) -> None:
    """Law: without a known mark, a first start is no loss and a missing part is one."""
    loss = loss_of(None, FeedState("g", 5), found)
    assert (loss.kind if loss else None) == kind


@pytest.mark.parametrize(
    ("noted", "told"),
    [
        (None, False),
        (HighWaterMark("g2", 10, ("g1",), 0), False),
        (HighWaterMark("g2", 4, ("g1",), 1), True),
        (HighWaterMark("g3", 10, ("g2", "g1"), 1), True),
        (HighWaterMark("h3", 10, ("h2", "g1"), 1), True),
        (HighWaterMark("x", 10, (), 9), False),
    ],
)
def test_who_comes_second_knows_it(noted: HighWaterMark | None, told: bool) -> None:
    """Law: a loss of the same feed that another process noted is announced; a note of another feed is ignored."""
    assert is_announced(KNOWN, noted) is told


def test_only_a_replaced_feed_is_read_as_a_baseline_over_what_it_holds() -> None:
    """Law: the marks say what was lost and when; for a replaced feed they drop the token."""
    lost, replaced = loss_of(KNOWN, FeedState("g2", 1), ""), loss_of(KNOWN, FeedState("x", 1), "")
    assert lost is not None
    assert replaced is not None
    said = {LOST: lost.text, LOST_AT: "1970-01-01T00:00:01.000Z"}
    assert loss_marks(lost, now_ms=1000) == said
    assert {READ_AT: None, DELTA_TOKEN: None, ANEW_AT: "1000"}.items() <= loss_marks(replaced, now_ms=1000).items()


def test_what_is_remembered_survives_being_written() -> None:
    """Law: an encoded mark decodes to the same mark."""
    assert msgspec.json.decode(msgspec.json.encode(KNOWN), type=HighWaterMark) == KNOWN


async def test_a_note_that_is_no_text_is_unknown(real: Redis) -> None:
    """Law: an unreadable note of another program does not keep the other notes from being read."""
    await real.hset("poller:{operations}:feeds", mapping={b"\xff": b"{}", b"a/b": b'{"generation":"\xff"}'})
    await real.hset("poller:{operations}:feeds", "a/c", b'{"generation":"g","sequence":7}')
    assert await high_water_marks(real, "poller:{operations}:feeds") == {"a/c": HighWaterMark("g", 7)}
    assert len(await known_feeds(real, "poller:{operations}:feeds")) == 3
