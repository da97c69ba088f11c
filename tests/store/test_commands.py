"""Laws of :mod:`poller.store.commands`: a command waits until its final reply, and gets only one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import cast

import msgspec
import pytest
from redis.asyncio import Redis

from poller.clock import Clock
from poller.store.commands import (
    Command,
    CommandQueue,
    CommandReply,
    FeedPause,
    RoundRequest,
    pause,
    pause_of,
    request_round,
    resume,
)
from poller.store.feed import FeedScripts, FeedStore
from poller.store.feed_state import FeedState, state_of
from poller.store.keys import FeedKeys, answer_key, orders_key
from tests.harness.clock import StubClock

AT = datetime(2026, 3, 2, 8, 15, tzinfo=UTC)
ONE = Command("1", "acme/contractTypes", "resync", AT)
BEGUN = CommandReply("me", done=False, text="begins")
DONE = CommandReply("me", done=True, text="ended", round={"ok": True, "pages": 2, "error": None})


async def test_it_waits_until_it_is_answered_for_good(store_client: Redis) -> None:
    """Law: a command stays pending until its final reply; an interim reply does not remove it."""
    queue = CommandQueue(store_client, "poller")
    await queue.submit(ONE)
    assert (await queue.pending(), await queue.last_reply(ONE)) == ([ONE], None)
    await queue.reply(ONE, BEGUN)
    assert (await queue.pending(), await queue.last_reply(ONE)) == ([ONE], BEGUN)
    await queue.reply(ONE, DONE)
    assert (await queue.pending(), await queue.last_reply(ONE)) == ([], DONE)


async def test_it_is_answered_for_good_once(store_client: Redis) -> None:
    """Law: a late interim reply does not replace the final reply."""
    queue = CommandQueue(store_client, "poller")
    await queue.submit(ONE)
    await queue.reply(ONE, DONE)
    await queue.reply(ONE, BEGUN)
    assert await queue.last_reply(ONE) == DONE


async def test_nothing_stays_for_ever(store_client: Redis) -> None:
    """Law: an unread reply expires, and a withdrawn command is gone."""
    queue = CommandQueue(store_client, "poller")
    await queue.submit(ONE)
    await queue.reply(ONE, BEGUN)
    assert await store_client.pttl(answer_key("poller", "1")) > 0
    await store_client.delete(answer_key("poller", "1"))
    assert await queue.withdraw(ONE)
    assert await queue.pending() == []


async def test_what_somebody_is_at_is_not_forgotten(store_client: Redis) -> None:
    """Law: a command in progress is kept alive and cannot be withdrawn, so a long round still gets its final reply."""
    queue, key = CommandQueue(store_client, "poller"), answer_key("poller", "1")
    await queue.submit(ONE)
    await queue.reply(ONE, BEGUN)
    await store_client.pexpire(key, 60_000)
    await queue.keep_alive(ONE)
    assert await store_client.pttl(key) > 60_000
    assert not await queue.withdraw(ONE)
    await queue.reply(ONE, DONE)
    assert await queue.last_reply(ONE) == DONE


async def test_what_cannot_be_read_is_left_alone(store_client: Redis) -> None:
    """Law: a command that another version wrote is ignored."""
    queue = CommandQueue(store_client, "poller")
    await store_client.hset(orders_key("poller"), "0", "{}")
    await store_client.set(answer_key("poller", "1"), "no")
    await queue.submit(ONE)
    assert (await queue.pending(), await queue.last_reply(ONE)) == ([ONE], None)


# Requests for the next round are accepted only where they apply.

KEYS = FeedKeys.of("poller", "acme/contractTypes")


async def state(client: Redis) -> FeedState:
    return state_of(cast("dict[bytes, bytes]", await client.hgetall(KEYS.state)))


async def test_only_what_is_held_can_be_released(store_client: Redis) -> None:
    """Law: releasing a feed without held removals returns false and leaves no mark that would release later ones."""
    assert not await request_round(store_client, KEYS, RoundRequest.RELEASE)
    await store_client.hset(KEYS.state, "generation", "g")
    assert not await request_round(store_client, KEYS, RoundRequest.RELEASE)
    assert not (await state(store_client)).released
    await store_client.hset(KEYS.state, "held", "2 of 2 are missing")
    assert await request_round(store_client, KEYS, RoundRequest.RELEASE)
    assert (await state(store_client)).released


async def test_a_release_notes_how_many_records_are_held(store_client: Redis) -> None:
    """Law: a release stores the number that is held when it is given; where none is known, none remains."""
    await store_client.hset(KEYS.state, mapping={"generation": "g", "held": "60 are missing", "held_missing": "60"})
    assert await request_round(store_client, KEYS, RoundRequest.RELEASE)
    await store_client.hset(KEYS.state, "held_missing", "500")
    assert (await state(store_client)).released_missing == 60
    await store_client.hdel(KEYS.state, "held_missing")
    assert await request_round(store_client, KEYS, RoundRequest.RELEASE)
    assert (await state(store_client)).released_missing is None


async def test_a_feed_that_was_read_can_be_read_again(store_client: Redis) -> None:
    """Law: a resync or reset is accepted for a feed that has a state, and creates no state for one that has none."""
    assert not await request_round(store_client, KEYS, RoundRequest.RESYNC)
    assert not await store_client.exists(KEYS.state)
    await store_client.hset(KEYS.state, "generation", "g")
    assert not await request_round(store_client, FeedKeys.of("poller", "acme/other"), RoundRequest.ANEW)
    assert await request_round(store_client, KEYS, RoundRequest.RESYNC)
    assert (await state(store_client)).resync


# Pauses: a paused feed begins no round and keeps its data.

WANTED = FeedPause("anna on desk", "moving house", datetime(2026, 3, 2, 8, 15, tzinfo=UTC))


@pytest.fixture
def store(store_client: Redis) -> FeedStore:
    return FeedStore(
        store_client,
        FeedScripts(store_client),
        KEYS,
        nonce="me/1",
        lease=timedelta(seconds=60),
        clock=Clock(),
    )


async def test_a_paused_feed_is_begun_by_nobody(store_client: Redis, store: FeedStore) -> None:
    """Law: a paused feed begins no round and gets neither lease nor state; after it is resumed, rounds begin."""
    assert await pause(store_client, KEYS, WANTED) is None
    assert await store.open_round() == WANTED
    assert not store.held
    assert not await store_client.exists(KEYS.lease, KEYS.state)
    assert await resume(store_client, KEYS) == WANTED
    assert isinstance(await store.open_round(), FeedState)
    assert store.held


async def test_who_has_the_lease_keeps_it(store_client: Redis, store: FeedStore) -> None:
    """Law: pausing a feed leaves its lease with the owner, so that work such as retention goes on."""
    assert await store.lease.acquire() is None
    await pause(store_client, KEYS, WANTED)
    assert await store.open_round() == WANTED
    assert store.held
    assert await store_client.get(KEYS.lease) == b"me/1"


async def test_the_first_pause_counts(store_client: Redis) -> None:
    """Law: pausing a paused feed changes nothing and returns its pause; resuming an active one returns None."""
    await pause(store_client, KEYS, WANTED)
    assert await pause(store_client, KEYS, FeedPause("another", "", WANTED.at)) == WANTED
    assert await resume(store_client, KEYS) == WANTED
    assert await resume(store_client, KEYS) is None


async def test_a_feed_that_is_begun_anew_stays_paused(store_client: Redis, store: FeedStore) -> None:
    """Law: no other command ends a pause, not even a reset of the feed."""
    await store.open_round()
    await pause(store_client, KEYS, WANTED)
    assert await request_round(store_client, KEYS, RoundRequest.ANEW)
    assert await store.open_round() == WANTED


@pytest.mark.parametrize("age", [timedelta(0), timedelta(hours=1)], ids=["found here before", "ended before"])
async def test_a_pause_of_an_older_copy_is_noted_once(store_client: Redis, store: FeedStore, age: timedelta) -> None:
    """Law: a pause after which the feed was polled here has come back with an older copy of the store."""
    wanted = msgspec.structs.replace(WANTED, at=datetime.now(UTC) - age)
    for _ in range(2):
        await pause(store_client, KEYS, wanted)
        if not age:
            assert await store.open_round() == wanted
        assert store.take_pause_back() is None
        await resume(store_client, KEYS)
        assert isinstance(await store.open_round(), FeedState)
        await pause(store_client, KEYS, wanted)  # as in the copy
        assert await store.open_round() == wanted
        assert [store.take_pause_back(), store.take_pause_back()] == [wanted, None]
        assert await store.open_round() == wanted
        assert store.take_pause_back() is None
        await resume(store_client, KEYS)
        wanted = msgspec.structs.replace(wanted, at=wanted.at + timedelta(seconds=1))


@pytest.mark.parametrize(
    ("at", "now"),
    [
        (timedelta(seconds=-2), timedelta(0)),
        (timedelta(hours=-2), timedelta(hours=-2)),
        (timedelta(hours=1), timedelta(0)),
    ],
    ids=["on its way while a round began", "the store's clock was set back", "a clock ahead"],
)
async def test_an_operators_pause_is_none_of_an_older_copy(store_client: Redis, at: timedelta, now: timedelta) -> None:
    """Law: a pause that is new, as far as clocks can tell, is not taken for one that came back."""
    store = FeedStore(
        store_client,
        FeedScripts(store_client),
        KEYS,
        nonce="me/1",
        lease=timedelta(seconds=60),
        clock=StubClock(now=lambda: datetime.now(UTC) + now),
    )
    assert isinstance(await store.open_round(), FeedState)
    wanted = msgspec.structs.replace(WANTED, at=datetime.now(UTC) + at)
    await pause(store_client, KEYS, wanted)
    assert await store.open_round() == wanted
    assert store.take_pause_back() is None


async def test_a_pause_by_another_version_is_none_of_an_older_copy(store_client: Redis, store: FeedStore) -> None:
    """Law: of a pause without a readable moment nothing is said."""
    for _ in range(2):
        assert isinstance(await store.open_round(), FeedState)
        await store_client.set(KEYS.pause, b"1")
        assert isinstance(await store.open_round(), FeedPause)
        assert store.take_pause_back() is None
        await resume(store_client, KEYS)


@pytest.mark.parametrize("kept", [b"", b"1", b'{"by":7}', b"\xff", b'{"by":"\xff"}'])
def test_what_another_version_wrote_is_a_pause(kept: bytes) -> None:
    """Law: any value in the pause key is a pause, and its text can be shown."""
    assert pause_of(kept).text.startswith("paused by another version")


@pytest.mark.parametrize("kept", [b"", b"1", b"\xff", b'{"id":"\xff"}'])
async def test_a_command_that_cannot_be_read_is_left_alone(store_client: Redis, kept: bytes) -> None:
    """Law: a command that another program wrote is skipped, and the others are read."""
    queue = CommandQueue(store_client, "poller")
    await queue.submit(ONE)
    await store_client.hset(orders_key("poller"), "bad", kept)
    assert await queue.pending() == [ONE]


def test_the_text_is_one_line() -> None:
    """Law: the text of a pause is one line, whatever its fields hold."""
    assert "\n" not in FeedPause("a\nb", "x\x1b[31m\ny", WANTED.at).text
    assert WANTED.text == "paused by anna on desk since 2026-03-02 08:15 UTC: moving house"
