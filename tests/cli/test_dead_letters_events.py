"""``poller dead-letters`` on events that were given up on, on a real store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import msgspec
import pytest
from redis import Redis

from poller.control.dead_letters import TOLD_EVERY, DeadLetters
from poller.delivery.delivery_codec import Attempt, Delivery, StoredDeadLetter, encode
from poller.delivery.retry import Tries
from poller.redis.client import commands
from poller.store.dead_letters import MOST_WAITING
from poller.store.keys import ConsumerKeys, FeedKeys, SubscriptionKeys, remembered_key
from poller.store.registry import Registry
from tests.cli.conftest import Called
from tests.delivery.events import entry
from tests.stores import looking

FEED: Final = "default/contractTypes"
KEYS: Final = ConsumerKeys.of("poller", FEED, "a")
TRIED: Final = (
    Attempt("2026-03-02T08:15:00.000Z", 0.25, "status 503", 503, excerpt="busy \x1b[31m"),
    Attempt("2026-03-02T08:16:00.000Z", 15, "no answer within 15 s", None, "timeout"),
)


@pytest.fixture
def server(store_url: str) -> str:
    return store_url


@pytest.fixture
def store(server: str) -> Iterator[Redis]:
    """An empty store with the subscriptions a and b."""
    with looking(server) as client:
        asyncio.run(_registered(server))
        yield client


async def _registered(url: str) -> None:
    async with commands(url) as client:
        registry = Registry(client, SubscriptionKeys.of("poller"))
        for name in ("a", "b"):
            await registry.add(
                name, b'{"id":"%s","sink":"https://h.example.org"}' % name.encode(), (), datetime.now(UTC)
            )


@pytest.fixture
def configured(server: str) -> dict[str, str]:
    return {"POLLER_BASE_URL": "http://127.0.0.1:1", "POLLER_TOKEN": "t", "REDIS_URL": server}


def give_up(store: Redis, number: int, *, feed: str = FEED, subscription: str = "a", event: bytes | None = None) -> str:
    """The id of a dead letter written as a feed consumer writes it."""
    keys = ConsumerKeys.of("poller", feed, subscription)
    content = entry(number=number) if event is None else event
    store.hset(
        keys.letters, f"{number}-0", encode(StoredDeadLetter(msgspec.Raw(content), "gone \x1b[31m", "at", TRIED))
    )
    store.zadd(keys.letter_times, {f"{number}-0": number})
    return f"{feed}:{subscription}:{number}-0"


def test_list_and_show(called: Called, configured: dict[str, str], store: Redis) -> None:
    """Both kinds are listed by time, or the events of one subscription; foreign text cannot control the terminal."""
    first, other, last = give_up(store, 1), give_up(store, 2, subscription="b"), give_up(store, 4)
    store.xadd(FeedKeys.of("poller", FEED).quarantine, {"raw": "[1]", "reason": "no id"}, id="3-0")
    listed = called("dead-letters", "list", "--json", **configured)
    lines = [json.loads(line) for line in listed.out.splitlines()]
    assert [line["id"] for line in lines] == [first, other, f"{FEED}:3-0", last]
    assert [(line["kind"], line["subscription"]) for line in lines[1:3]] == [("event", "b"), ("record", None)]
    assert lines[0]["bytes"] == len(entry(number=1))
    published = json.loads(entry(number=1))
    assert (lines[0]["type"], lines[0]["subject"]) == (published["type"], published["subject"])
    assert (lines[2]["type"], lines[2]["subject"]) == (None, None)
    table = called("dead-letters", "list", **configured).out.splitlines()
    assert table[0].split() == ["id", "age", "type", "subject", "reason"]
    assert published["subject"] in table[1]
    some = called("dead-letters", "list", "contractTypes", "--subscription", "a", "--limit", "1", **configured)
    assert [line.split()[0] for line in some.out.splitlines()] == ["id", last]
    assert some.err == "poller: 1 older not shown; --limit 2 shows all\n"
    assert called("dead-letters", "list", "achievements", **configured).out == "no dead letters\n"

    shown = called("dead-letters", "show", first, **configured).out
    assert "\nattempt 2026-03-02T08:15:00.000Z  0.250 s  status 503\n        busy \\x1b[31m\n" in shown
    assert "\nattempt 2026-03-02T08:16:00.000Z  15.000 s  no answer within 15 s\n" in shown
    assert '\n  "specversion": "1.0",\n' in shown
    assert "\x1b" not in shown
    assert called("dead-letters", "show", "--raw", first, **configured).out.encode() == entry(number=1)


def test_redeliver(called: Called, configured: dict[str, str], store: Redis) -> None:
    """Dead letters are scheduled for redelivery once each, by id or all of a subscription; the count is shown."""
    first, other = give_up(store, 1), give_up(store, 2, subscription="b")
    lost, last = give_up(store, 3, event=b"null"), give_up(store, 4)
    told = called("dead-letters", "redeliver", first, **configured)
    assert (told.code, told.out) == (0, "1 dead letter scheduled for redelivery\n")
    again = called("dead-letters", "redeliver", first, **configured)
    assert (again.code, again.out) == (1, "0 dead letters scheduled for redelivery\n")
    assert f"no dead letter {first}" in again.err
    every = called("dead-letters", "redeliver", "--subscription", "a", "--all", **configured)
    assert (every.code, every.out) == (1, "1 dead letter scheduled for redelivery\n")
    assert f"{lost}: the event is not stored any more" in every.err
    parked = {key: msgspec.json.decode(value, type=Delivery) for key, value in store.hgetall(KEYS.parked).items()}
    assert sorted(parked) == [b"1-0", b"4-0"]
    assert bytes(parked[b"1-0"].event) == entry(number=1)
    renewed = parked[b"1-0"]
    assert (renewed.key, renewed.due, renewed.tries, renewed.attempts) == ("K", 0, Tries(), TRIED)
    listed = called("dead-letters", "list", "--json", **configured).out.splitlines()
    assert [json.loads(line)["id"] for line in listed] == [other, lost]
    assert last not in "".join(listed)
    assert store.get(SubscriptionKeys.of("poller").parked) == b"3"
    gone = [give_up(store, number, event=b"null") for number in range(5, 10)]
    many = called("dead-letters", "redeliver", *gone, **configured)
    assert f"{', '.join(gone[:3])} and 2 more: the event is not stored any more" in many.err


def test_a_feed_that_is_not_listed(called: Called, configured: dict[str, str], store: Redis, server: str) -> None:
    """A dead letter of a feed that its subscription does not list any more stays one, for nothing would deliver it."""
    listed, other = give_up(store, 1), give_up(store, 2, feed="default/achievements")
    asyncio.run(_changed(server, b'{"id":"a","sink":"https://h.example.org","feeds":["%s"]}' % FEED.encode()))
    told = called("dead-letters", "redeliver", listed, other, **configured)
    assert (told.code, told.out) == (1, "1 dead letter scheduled for redelivery\n")
    assert f"{other}: not redelivered, because" in told.err
    assert "do not list default/achievements any more" in told.err
    assert store.hkeys(ConsumerKeys.of("poller", "default/achievements", "a").parked) == []
    assert called("dead-letters", "show", other, **configured).code == 0


async def _changed(url: str, settings: bytes) -> None:
    async with commands(url) as client:
        await Registry(client, SubscriptionKeys.of("poller")).change("a", settings)


def test_a_feed_that_only_the_store_knows(called: Called, configured: dict[str, str], store: Redis) -> None:
    """A dead letter of a feed that only the store knows is listed, shown, redelivered and dropped."""
    gone = "acme/renamed"
    first, second = (give_up(store, number, feed=gone) for number in (1, 2))
    assert called("dead-letters", "show", first, **configured).code == 2
    store.hset(remembered_key("poller"), gone, b"{}")
    listed = called("dead-letters", "list", "--json", **configured).out.splitlines()
    assert [json.loads(line)["id"] for line in listed] == [first, second]
    assert called("dead-letters", "list", gone, **configured).code == 0
    assert called("dead-letters", "show", first, **configured).code == 0
    told = called("dead-letters", "redeliver", first, **configured)
    assert (told.code, told.out) == (0, "1 dead letter scheduled for redelivery\n")
    assert store.hkeys(ConsumerKeys.of("poller", gone, "a").parked) == [b"1-0"]
    told = called("dead-letters", "drop", "--subscription", "a", "--feed", gone, "--all", **configured)
    assert (told.code, told.out) == (0, "1 dead letter dropped\n")


def test_the_limit_of_waiting_deliveries(called: Called, configured: dict[str, str], store: Redis) -> None:
    """Nothing is redelivered beyond the limit of waiting deliveries; the letters stay, and an error says so."""
    store.hset(KEYS.parked, mapping={f"9-{number}": b'{"key":"K"}' for number in range(MOST_WAITING - 1)})
    for number in (1, 2, 3):
        give_up(store, number)
    told = called("dead-letters", "redeliver", "--subscription", "a", "--feed", FEED, "--all", **configured)
    assert (told.code, told.out) == (1, "1 dead letter scheduled for redelivery\n")
    assert "2 dead letters not redelivered" in told.err
    assert (store.hlen(KEYS.parked), sorted(store.hkeys(KEYS.letters))) == (MOST_WAITING, [b"2-0", b"3-0"])


def test_drop(called: Called, configured: dict[str, str], store: Redis) -> None:
    """Dead letters are dropped by id, or all of one subscription and of no other."""
    first, other = give_up(store, 1), give_up(store, 2, subscription="b")
    for number in range(3, 6):
        give_up(store, number)
    assert called("dead-letters", "drop", first, **configured).out == "1 dead letter dropped\n"
    missing = called("dead-letters", "drop", first, **configured)
    assert (missing.code, f"no dead letter {first}" in missing.err) == (1, True)
    every = called("dead-letters", "drop", "--subscription", "a", "--all", **configured)
    assert (every.code, every.out) == (0, "3 dead letters dropped\n")
    assert not store.exists(KEYS.letters, KEYS.letter_times)
    assert other in called("dead-letters", "list", **configured).out


def test_an_overrun(called: Called, configured: dict[str, str], store: Redis) -> None:
    """An overrun is one dead letter with the number of events and their range; it can be dropped, not redelivered."""
    row = b'{"event":null,"reason":"why","at":"at","attempts":[],"overrun":%s}'
    one = b'{"first":"5-0","left":"9-0","events":4,"sequence":5,"last_sequence":8}'
    store.hset(
        KEYS.letters, mapping={"0-1": row % one, "0-2": row % one.replace(b'"9-0"', b"null").replace(b"8", b"null")}
    )
    store.zadd(KEYS.letter_times, {"0-1": 1000, "0-2": 2000})
    name = f"{FEED}:a:0-1"
    listed = called("dead-letters", "list", "--json", **configured)
    first, last = (json.loads(line) for line in listed.out.splitlines())
    assert (first["id"], first["kind"], first["bytes"]) == (name, "overrun", 0)
    assert (first["reason"], last["reason"]) == ("4 events, sequence 5 to 8: why", "4 events: why")
    shown = called("dead-letters", "show", name, **configured).out
    assert "\nfrom    5-0\nbefore  9-0\n" in shown
    assert "the stream is empty" in called("dead-letters", "show", f"{FEED}:a:0-2", **configured).out
    assert called("dead-letters", "show", "--raw", name, **configured).out == ""
    again = called("dead-letters", "redeliver", name, **configured)
    assert (again.code, again.out) == (1, "0 dead letters scheduled for redelivery\n")
    assert f"{name}: these events were trimmed from their stream" in again.err
    assert called("dead-letters", "drop", name, **configured).out == "1 dead letter dropped\n"
    assert store.hkeys(KEYS.letters) == [b"0-2"]


@pytest.mark.parametrize("what", ["drop", "redeliver"])
def test_an_ambiguous_selection_is_refused(called: Called, configured: dict[str, str], store: Redis, what: str) -> None:
    """An id together with a subscription or a feed, or ``--all`` alone, is refused as ambiguous."""
    first, _ = give_up(store, 1), give_up(store, 2)
    for arguments in ([first, "--subscription", "a"], [first, "--feed", FEED], ["--all"], ["--subscription", "a"], []):
        refused = called("dead-letters", what, *arguments, **configured)
        assert (refused.code, refused.out) == (2, ""), arguments
        assert "expected ID" in refused.err
    assert store.hlen(KEYS.letters) == 2


@pytest.mark.parametrize("what", ["drop", "redeliver"])
def test_with_feed_other_feeds_are_untouched(
    called: Called, configured: dict[str, str], store: Redis, what: str
) -> None:
    """With --feed, dead letters of the subscription at other feeds stay."""
    give_up(store, 1)
    done = called("dead-letters", what, "--subscription", "a", "--feed", "achievements", "--all", **configured)
    assert (done.code, done.out.partition(" ")[0]) == (0, "0")
    assert store.hlen(KEYS.letters) == 1


async def test_daemons_are_informed_during_a_long_redelivery(store: Redis, server: str) -> None:
    """A redelivery of many informs the daemons every hundred, in case that it is killed before its end."""
    for number in range(1, 2 * TOLD_EVERY + 2):
        give_up(store, number)
    async with commands(server) as client:
        letters, told = DeadLetters(client, "poller"), SubscriptionKeys.of("poller").parked
        await letters.redeliver(await letters.all_of("a", [FEED]))
        assert await client.get(told) == b"3"
