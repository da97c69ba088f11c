"""Dead letters: one suite over the simulated store, Valkey and Redis."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import cast

import pytest
from redis.asyncio import Redis

from poller.changes.plan import Commit
from poller.changes.records import Rejected
from poller.clock import Clock
from poller.store.dead_letters import (
    MOST_WAITING,
    DeadLetterId,
    DeadLetterSummary,
    Moved,
    Owner,
    drop,
    drop_all,
    drop_events,
    entries,
    letter_id,
    letters,
    newest,
    newest_events,
    opened,
    pairs_of,
    redeliver,
)
from poller.store.feed import QUARANTINE_BYTES, FeedScripts, FeedStore, rejected_digest
from poller.store.feed_state import FeedState
from poller.store.keys import ConsumerKeys, FeedKeys
from poller.store.scripts import DROP

FEED = "acme/contractTypes"
KEYS = FeedKeys.of("poller", FEED)
OTHER = "acme/evidenceVariants"
FEEDS = {FEED: KEYS, OTHER: FeedKeys.of("poller", OTHER)}
_digests = (f"commit-{number}" for number in itertools.count())


async def quarantine(client: Redis, *records: bytes) -> list[str]:
    """Commit these rejected records as a round does; returns the ids of all quarantine entries."""
    store = FeedStore(
        client,
        FeedScripts(client),
        KEYS,
        nonce="a",
        lease=timedelta(seconds=60),
        clock=Clock(),
    )
    state = await store.open_round()
    assert isinstance(state, FeedState)
    rejected = tuple(Rejected(raw, "not an object") for raw in records)
    await store.commit(Commit(state.generation, state.sequence, rejected=rejected, digest=next(_digests)))
    return await ids(client)


async def ids(client: Redis) -> list[str]:
    found = cast("list[tuple[bytes, object]]", await client.xrange(KEYS.quarantine))
    return [number.decode() for number, _ in found]


async def test_what_is_listed_can_be_opened(store_client: Redis) -> None:
    """Law: an id from the list opens the record's bytes, with its reason and the time of its quarantine."""
    (entry,) = await quarantine(store_client, b"[1]")
    (letter,) = (await newest(store_client, FEEDS, most=5)).letters
    assert letter_id(letter.id) == DeadLetterId(FEED, entry)
    assert (letter.kind, letter.feed, letter.reason, letter.bytes) == ("record", FEED, "not an object", 3)
    found = await opened(store_client, FEED, KEYS, entry)
    assert found is not None
    assert (found.letter, found.raw, found.whole) == (letter, b"[1]", True)
    assert await opened(store_client, FEED, KEYS, "1-0") is None


async def test_the_newest_of_all_feeds_come_last(store_client: Redis) -> None:
    """Law: the newest dead letters of all feeds are listed in order of time, and the others are counted."""
    for number in range(1, 81):
        keys = FEEDS[FEED if number % 2 else OTHER]
        await store_client.xadd(keys.quarantine, {"raw": "[]", "reason": "r"}, id=f"{number * 1000}-0")
    listed = await newest(store_client, FEEDS, most=50)
    assert [letter.at for letter in listed.letters] == [
        f"1970-01-01T00:{number // 60:02d}:{number % 60:02d}.000Z" for number in range(31, 81)
    ]
    assert listed.hidden == 30
    every = await newest(store_client, FEEDS, most=80)
    assert (len(every.letters), every.hidden) == (80, 0)
    assert (await newest(store_client, {}, most=1)).letters == ()


async def test_what_was_dropped_is_quarantined_anew(store_client: Redis) -> None:
    """Law: a record is quarantined once, and again after it was dropped, even if only a part of it is kept."""
    long = b"[" + b"1" * QUARANTINE_BYTES + b"]"
    first, second = await quarantine(store_client, b"[1]", long)
    assert await quarantine(store_client, b"[1]", long) == [first, second]
    assert await drop(store_client, KEYS, first)
    assert await ids(store_client) == [second]
    assert await drop(store_client, KEYS, second)
    assert not await drop(store_client, KEYS, second)
    again = await quarantine(store_client, b"[1]", long)
    assert len(again) == 2
    found = await opened(store_client, FEED, KEYS, again[1])
    assert found is not None
    assert (found.raw, found.whole) == (long[:QUARANTINE_BYTES], False)


async def test_dropping_twice_does_not_forget_what_came_between(store_client: Redis) -> None:
    """Law: a late second drop of an entry keeps the digest of the same record quarantined since."""
    (first,) = await quarantine(store_client, b"[1]")
    assert await drop(store_client, KEYS, first)
    (second,) = await quarantine(store_client, b"[1]")
    late = await store_client.eval(DROP, 2, KEYS.quarantine, KEYS.rejected, first, rejected_digest(b"[1]"))
    assert late == 0
    assert await quarantine(store_client, b"[1]") == [second]


async def test_all_of_a_feed_are_dropped(store_client: Redis) -> None:
    """Law: dropping all of a feed removes its entries and digests in several calls; other feeds keep theirs."""
    records = [b"[%d]" % number for number in range(50)]
    await quarantine(store_client, *records)
    await store_client.xadd(FEEDS[OTHER].quarantine, {"raw": "[]", "reason": "r"})
    assert await drop_all(store_client, KEYS) == 50
    assert not await store_client.exists(KEYS.rejected)
    assert await drop_all(store_client, KEYS) == 0
    assert len(await quarantine(store_client, *records)) == 50
    assert len((await newest(store_client, {OTHER: FEEDS[OTHER]}, most=5)).letters) == 1


async def test_entries_without_a_digest(store_client: Redis) -> None:
    """Law: entries of an older version, without a digest, are listed and dropped; a cut one has ``whole`` None."""
    await quarantine(store_client)
    long = b"1" * QUARANTINE_BYTES
    for raw in (b"[1]", long):
        await store_client.xadd(KEYS.quarantine, {"raw": raw, "reason": "not an object"})
        await store_client.zadd(KEYS.rejected, {rejected_digest(raw): 1})
    first, second = await ids(store_client)
    found = [await opened(store_client, FEED, KEYS, entry) for entry in (first, second)]
    assert [one and one.whole for one in found] == [True, None]
    assert await drop(store_client, KEYS, first)
    assert len(await quarantine(store_client, b"[1]")) == 2


async def test_what_others_wrote_is_listed(store_client: Redis) -> None:
    """Law: entries without our fields, or with times beyond the calendar, are listed without an error."""
    await store_client.xadd(KEYS.quarantine, {"other": b"\xff"}, id="1-0")
    await store_client.xadd(KEYS.quarantine, {"reason": b"\xff"}, id=f"{2**63}-1")
    letters = (await newest(store_client, FEEDS, most=5)).letters
    assert [(letter.at[:4], letter.reason, letter.bytes) for letter in letters] == [("1970", "", 0), ("9999", "�", 0)]
    assert await drop_all(store_client, KEYS) == 2


@pytest.mark.parametrize(
    "text",
    ["", "1-0", f"{FEED}:", f"{FEED}:1", f"{FEED}:1-0 ", f"{FEED}:\u0661-0", f"{FEED}:{2**64}-0", f"{FEED}:-1-0"],
)
def test_what_is_no_id(text: str) -> None:
    """Law: a text that is not a dead letter's id gives None."""
    assert letter_id(text) is None


def test_an_id_is_one_word_for_a_shell() -> None:
    """Law: an id needs no quoting in a shell, and may name the feed with or without its source."""
    assert letter_id("acme/a_b-c:1735689600000-12") == DeadLetterId("acme/a_b-c", "1735689600000-12")
    assert letter_id("contractTypes:1-0") == DeadLetterId("contractTypes", "1-0")
    event = DeadLetterId("acme/contractTypes", "1735689600000-12", "a-sub")
    assert event.text == "acme/contractTypes:a-sub:1735689600000-12"
    assert letter_id(event.text) == event
    assert DeadLetterSummary.__struct_fields__ == (
        "id",
        "kind",
        "feed",
        "at",
        "reason",
        "bytes",
        "subscription",
        "type",
        "subject",
    )


# Dead letters of events: one suite over the simulated store, Valkey and Redis.

PAIRS = pairs_of("poller", [FEED, "acme/achievements"], ["a", "b"])
OWNER = Owner(FEED, "a")
CONSUMER_KEYS = PAIRS[OWNER]


async def give_up(client: Redis, *numbers: int, keys: ConsumerKeys = CONSUMER_KEYS) -> None:
    for number in numbers:
        await client.hset(keys.letters, f"{number}-0", f"letter {number}")
        await client.zadd(keys.letter_times, {f"{number}-0": number})


async def test_the_newest_of_all(store_client: Redis) -> None:
    """Law: the newest dead letters of all feed consumers are listed, the newest last, and all are counted."""
    other = Owner("acme/achievements", "b")
    await give_up(store_client, 1, 3, 5)
    await give_up(store_client, 2, 4, keys=PAIRS[other])
    marks, total = await newest_events(store_client, PAIRS, most=3)
    assert [(mark.at, mark.owner, mark.entry) for mark in marks] == [
        (3, OWNER, "3-0"),
        (4, other, "4-0"),
        (5, OWNER, "5-0"),
    ]
    assert total == 5
    assert await newest_events(store_client, {}, most=3) == ([], 0)


async def test_a_letter_is_moved_once_and_as_it_was_seen(store_client: Redis) -> None:
    """Law: of two redeliveries of a dead letter one moves it; one that changed since it was read stays."""
    await give_up(store_client, 1)
    seen = {"letter": b"letter 1", "delivery": b"d"}
    assert await redeliver(store_client, CONSUMER_KEYS, "1-0", letter=b"another", delivery=b"d") is Moved.ABSENT
    assert not await store_client.exists(CONSUMER_KEYS.parked)
    assert await redeliver(store_client, CONSUMER_KEYS, "1-0", **seen) is Moved.MOVED
    assert await redeliver(store_client, CONSUMER_KEYS, "1-0", **seen) is Moved.ABSENT
    assert await store_client.hgetall(CONSUMER_KEYS.parked) == {b"1-0": b"d"}
    assert not await store_client.exists(CONSUMER_KEYS.letters, CONSUMER_KEYS.letter_times)


async def test_so_many_may_wait(store_client: Redis) -> None:
    """Law: a dead letter stays whole if too many deliveries are scheduled already."""
    await give_up(store_client, 1)
    await store_client.hset(CONSUMER_KEYS.parked, mapping={f"9-{number}": "d" for number in range(MOST_WAITING)})
    assert await redeliver(store_client, CONSUMER_KEYS, "1-0", letter=b"letter 1", delivery=b"d") is Moved.FULL
    assert await letters(store_client, [(CONSUMER_KEYS, "1-0"), (CONSUMER_KEYS, "2-0")]) == [b"letter 1", None]
    assert await entries(store_client, CONSUMER_KEYS) == ["1-0"]


async def test_a_letter_whose_time_is_lost_is_found(store_client: Redis) -> None:
    """Law: dead letters whose times the store has lost can be redelivered and dropped; they come in stream order."""
    await give_up(store_client, 10, 9)
    await store_client.delete(CONSUMER_KEYS.letter_times)
    assert await entries(store_client, CONSUMER_KEYS) == ["9-0", "10-0"]
    moved = await redeliver(store_client, CONSUMER_KEYS, "9-0", letter=b"letter 9", delivery=b"d")
    assert moved is Moved.MOVED
    assert await drop_events(store_client, CONSUMER_KEYS, ["10-0"]) == 1
    assert await entries(store_client, CONSUMER_KEYS) == []


async def test_dropped(store_client: Redis) -> None:
    """Law: dropping removes dead letters from both keys, however many; unknown ids are not counted."""
    await give_up(store_client, *range(1200))
    assert (
        await drop_events(store_client, CONSUMER_KEYS, [*(await entries(store_client, CONSUMER_KEYS))[:1100], "9999-0"])
        == 1100
    )
    assert len(await entries(store_client, CONSUMER_KEYS)) == await store_client.hlen(CONSUMER_KEYS.letters) == 100
    assert await drop_events(store_client, CONSUMER_KEYS, []) == 0
