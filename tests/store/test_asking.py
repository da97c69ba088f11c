"""Laws of :mod:`poller.store.asking`: an order waits until it is answered for good, and is answered once."""

from __future__ import annotations

from datetime import UTC, datetime

from redis.asyncio import Redis

from poller.store.asking import AskedOrder, Asking, OrderAnswer
from poller.store.keys import answer_key, orders_key

AT = datetime(2026, 3, 2, 8, 15, tzinfo=UTC)
ONE = AskedOrder("1", "acme/contractTypes", "resync", AT)
BEGUN = OrderAnswer("me", done=False, text="begins")
DONE = OrderAnswer("me", done=True, text="ended", round={"ok": True, "pages": 2, "error": None})


async def test_it_waits_until_it_is_answered_for_good(store_client: Redis) -> None:
    """Law: an answer that is not the last leaves it waiting, for whoever takes the feed should this process die."""
    asking = Asking(store_client, "poller")
    await asking.ask(ONE)
    assert (await asking.waiting(), await asking.answered(ONE)) == ([ONE], None)
    await asking.answer(ONE, BEGUN)
    assert (await asking.waiting(), await asking.answered(ONE)) == ([ONE], BEGUN)
    await asking.answer(ONE, DONE)
    assert (await asking.waiting(), await asking.answered(ONE)) == ([], DONE)


async def test_it_is_answered_for_good_once(store_client: Redis) -> None:
    """Law: who slept through its lease does not take back what the next owner said."""
    asking = Asking(store_client, "poller")
    await asking.ask(ONE)
    await asking.answer(ONE, DONE)
    await asking.answer(ONE, BEGUN)
    assert await asking.answered(ONE) == DONE


async def test_nothing_stays_for_ever(store_client: Redis) -> None:
    """Law: an answer that nobody reads expires, and an order that is forgotten is gone."""
    asking = Asking(store_client, "poller")
    await asking.ask(ONE)
    await asking.answer(ONE, BEGUN)
    assert await store_client.pttl(answer_key("poller", "1")) > 0
    await store_client.delete(answer_key("poller", "1"))
    assert await asking.forget(ONE)
    assert await asking.waiting() == []


async def test_what_somebody_is_at_is_not_forgotten(store_client: Redis) -> None:
    """Law: a round that takes longer than an order waits is heard of to its end."""
    asking, key = Asking(store_client, "poller"), answer_key("poller", "1")
    await asking.ask(ONE)
    await asking.answer(ONE, BEGUN)
    await store_client.pexpire(key, 60_000)
    await asking.keep(ONE)
    assert await store_client.pttl(key) > 60_000
    assert not await asking.forget(ONE)
    await asking.answer(ONE, DONE)
    assert await asking.answered(ONE) == DONE


async def test_what_cannot_be_read_is_left_alone(store_client: Redis) -> None:
    """Law: what another version wrote stops nobody."""
    asking = Asking(store_client, "poller")
    await store_client.hset(orders_key("poller"), "0", "{}")
    await store_client.set(answer_key("poller", "1"), "no")
    await asking.ask(ONE)
    assert (await asking.waiting(), await asking.answered(ONE)) == ([ONE], None)
