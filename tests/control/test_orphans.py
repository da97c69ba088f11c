"""Laws of :mod:`poller.control.orphans`, on all stores: what waits at an orphaned feed, and what forgetting deletes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from poller.clock import Clock
from poller.config.settings import Settings
from poller.control import subscriptions as subscribing
from poller.control.orphans import (
    ConfigurationDifference,
    OrphanedBacklog,
    OrphanedFeed,
    claimed,
    differences,
    forget,
    orphaned,
    orphaned_feeds,
    stated,
    store_orphans,
    waiting_at,
)
from poller.control.subscriptions import filed, registry_of
from poller.daemon.cluster.membership import Configurations, Membership
from poller.daemon.health import StoreMonitor
from poller.daemon.retention_role import RetentionRole
from poller.errors import ConfigurationError, PollerError
from poller.redis.client import commands
from poller.store.consumer_state import ConsumerScripts, ConsumerStore, Settlement, forget_feed
from poller.store.keys import ConsumerKeys, FeedKeys, MemberKeys, SubscriptionKeys, remembered_key
from poller.store.members import UNSAID, MemberConfiguration, MemberList, Members
from poller.store.recovery import known_feeds, store_unread
from poller.store.replay import ReplaySpan, start_replay
from poller.store.subscriptions import health_field
from tests.control.subscribed import FEEDS, NOW, configured
from tests.harness.clock import StubClock, store_clock
from tests.harness.waiting import patience, turns
from tests.stores import Store, Stores, all_keys

OLD = "acme/old"
KEYS, NOTED = FeedKeys.of("poller", OLD), remembered_key("poller")
A = ConsumerKeys.of("poller", OLD, "a")
LEASE = timedelta(seconds=30)


@pytest.fixture
async def client(store_kind: Store, stores: Stores) -> AsyncIterator[Redis]:
    async with commands(stores.emptied(store_kind)) as found:
        yield found


@pytest.fixture
async def settings(client: Redis, tmp_path: Path) -> Settings:
    """Two feeds and the subscription ``a`` to all feeds; the old feed is not configured and has three events."""
    found = configured(tmp_path, "a")
    await registry_of(found, client).sync(filed(found), NOW)
    await store_unread(client, NOTED, OLD)
    for number in (1, 2, 3):
        await client.xadd(KEYS.events, {"data": f'{{"sequence":"{number:020}"}}'}, id=f"{number}-0")
    await client.hset(KEYS.state, mapping={"generation": "g", "sequence": "3"})
    return found


async def left(client: Redis, settings: Settings) -> bool:
    kept = await registry_of(settings, client).all()
    return "a" in await waiting_at(client, "poller", OLD, kept, now=NOW)


async def test_something_is_left_until_all_is_settled(client: Redis, settings: Settings) -> None:
    """Law: unread, unsettled, scheduled or replayed events wait; dead letters and an empty group do not."""
    assert await left(client, settings) is False  # the subscription is younger than these events
    store = ConsumerStore(
        client,
        ConsumerScripts(client),
        A,
        events=KEYS.events,
        subscription="a",
        nonce="m/n",
        lease=LEASE,
        clock=Clock(),
    )
    assert await store.lease.acquire() is None
    await store.open("earliest")
    assert await left(client, settings) is True  # unread
    await store.read(most=3)
    assert await left(client, settings) is True  # unsettled
    await store.settle(Settlement(acked=["1-0", "2-0", "3-0"], parked={"3-0": b"x"}, place="3-0"), now_ms=1)
    assert await left(client, settings) is True  # parked
    (found,) = await orphaned_feeds(client, settings, now=NOW)
    assert (found.feed, found.stream_length, found.undelivered) == (OLD, 3, 1)
    await store.settle(Settlement(unparked=["3-0"], letters={"3-0": b"{}"}), now_ms=1)
    assert await left(client, settings) is False
    (found,) = await orphaned_feeds(client, settings, now=NOW)
    assert (found.undelivered, found.subscriptions[0].dead_letters) == (0, 1)
    await start_replay(client, A, ReplaySpan("r", "0-0", "3-0"))
    assert await left(client, settings) is True


@pytest.mark.parametrize(
    ("table", "place", "expected"),
    [
        ({"start": "earliest"}, None, True),
        ({"start": "earliest", "feeds": [OLD]}, None, True),
        ({"start": "earliest", "feeds": list(FEEDS)}, None, False),
        ({"asked": 3}, None, True),
        ({"asked": 4}, None, False),
        ({"asked": 4, "asked_after": {OLD: "2-0"}}, None, True),
        ({"asked": 2, "asked_after": {OLD: "3-0"}}, None, False),
        ({}, None, False),
        ({"feeds": list(FEEDS)}, "2-0", True),
        ({}, "3-0", False),
    ],
)
async def test_one_that_has_no_group_there(
    client: Redis, settings: Settings, table: dict[str, Any], place: str | None, expected: bool
) -> None:
    """Law: a consumer without a group waits for the events from its start position on."""
    kept = await registry_of(settings, client).all()
    asked = {name: table[name] for name in ("asked", "asked_after") if name in table}
    one = msgspec.structs.replace(
        kept.registered["a"], **{"settings": msgspec.Raw(msgspec.json.encode(table)), "asked": 0} | asked
    )
    if place:
        await client.hset(A.state, "place", place)
    kept = msgspec.structs.replace(kept, registered={"a": one})
    assert ("a" in await waiting_at(client, "poller", OLD, kept, now=NOW)) is expected


async def everything(client: Redis) -> None:
    """Write one key of each kind for the feed, and for a registered and an unregistered subscription there."""
    for name in ("a", "gone"):
        await client.xgroup_create(KEYS.events, f"sub:{name}", id="0")
        pair = ConsumerKeys.of("poller", OLD, name)
        for key in (pair.parked, pair.letters, pair.state):
            await client.hset(key, "1-0", "x")
        await client.zadd(pair.letter_times, {"1-0": 1})
    for key in (KEYS.snapshots, KEYS.dictionaries, KEYS.listings, KEYS.overruns):
        await client.hset(key, "x", "y")
    for key in (KEYS.rejected, KEYS.qualifications):
        await client.zadd(key, {"x": 1})
    await client.xadd(KEYS.quarantine, {"raw": "x"})
    await client.set(KEYS.pause, "{}")
    await client.hset(SubscriptionKeys.of("poller").health, health_field("a", OLD), b"{}")


async def test_forgetting_deletes_every_key_of_the_feed(client: Redis, settings: Settings) -> None:
    """Law: forgetting deletes the feed's keys, note and health entries, and nothing of other feeds."""
    await everything(client)
    before = await all_keys(client)
    gone = await forget(client, settings, OLD, clock=StubClock(now=lambda: NOW))
    assert (gone.feed, gone.stream_length) == (OLD, 3)
    after = await all_keys(client)
    assert not [key for key in after if OLD.encode() in key]
    assert {key for key in before - after if OLD.encode() not in key} <= {
        NOTED.encode(),
        SubscriptionKeys.of("poller").health.encode(),
    }
    assert OLD not in await known_feeds(client, NOTED)
    with pytest.raises(ConfigurationError, match="the store has no feed"):
        await forget(client, settings, OLD, clock=StubClock(now=lambda: NOW))


@pytest.mark.parametrize("said", [MemberConfiguration((OLD,)), UNSAID])
async def test_what_a_live_process_may_have_stays(client: Redis, settings: Settings, said: MemberConfiguration) -> None:
    """Law: a feed is not forgotten while a live process has it or does not say which feeds it has."""
    members = Members(client, MemberKeys.of("poller"), name="m", ttl=LEASE, clock=store_clock(), configuration=said)
    await members.beat(["poll"], MemberList())
    before = await all_keys(client)
    with pytest.raises(PollerError, match=r"^m "):
        await forget(client, settings, OLD, clock=StubClock(now=lambda: NOW))
    assert await orphaned_feeds(client, settings, now=NOW) == []
    with pytest.raises(ConfigurationError, match="is in the configuration"):
        await forget(client, settings, FEEDS[0], clock=StubClock(now=lambda: NOW))
    assert await all_keys(client) == before


async def test_a_round_in_flight_is_not_robbed(client: Redis, settings: Settings) -> None:
    """Law: while another process holds the feed's lease, nothing is deleted, not even a part."""
    await everything(client)
    await client.set(KEYS.lease, "once-1-ab/nonce")
    before = await all_keys(client)

    async def at_once(_: float) -> None:
        await turns()

    with pytest.raises(PollerError, match="once-1-ab has it"):
        await forget(client, settings, OLD, clock=StubClock(now=lambda: NOW, sleep=at_once))
    assert await all_keys(client) == before
    assert OLD in await known_feeds(client, NOTED)
    assert await forget_feed(client, KEYS, [A], nonce="mine") is False  # without the feed's lease
    assert await all_keys(client) == before


async def test_a_process_that_comes_while_the_lease_is_waited_for_keeps_its_feed(
    client: Redis, settings: Settings
) -> None:
    """Law: the owners are checked again under the feed's lease, which is released if nothing is deleted."""
    await everything(client)
    before = await all_keys(client)
    await client.set(KEYS.lease, "once-1-ab/nonce")
    members = Members(
        client,
        MemberKeys.of("poller"),
        name="m",
        ttl=LEASE,
        clock=store_clock(),
        configuration=MemberConfiguration((OLD,)),
    )

    async def comes(_: float) -> None:
        await members.beat(["poll"], MemberList())
        await client.delete(KEYS.lease)

    with pytest.raises(PollerError, match=r"^m has acme/old in its configuration"):
        await forget(client, settings, OLD, clock=StubClock(now=lambda: NOW, sleep=comes))
    assert before <= await all_keys(client)
    assert OLD in await known_feeds(client, NOTED)
    assert not await client.exists(KEYS.lease)


async def test_those_that_deliver_let_go_before_anything_is_deleted(client: Redis, settings: Settings) -> None:
    """Law: the note goes and the member version moves first; then consumers' leases are waited for."""
    await everything(client)
    await client.set(A.lease, "m/nonce", px=60_000)
    version = MemberKeys.of("poller").version
    seen: list[tuple[bool, bool, bool]] = []

    async def lets_go(_: float) -> None:
        noted = OLD in await known_feeds(client, NOTED)
        seen.append((noted, bool(await client.exists(KEYS.events)), bool(await client.exists(version))))
        await client.delete(A.lease)

    await forget(client, settings, OLD, clock=StubClock(now=lambda: NOW, sleep=lets_go))
    assert seen == [(False, True, True)]
    assert not [key for key in await all_keys(client) if OLD.encode() in key]


async def test_a_lease_that_is_lost_while_deliveries_are_waited_for(client: Redis, settings: Settings) -> None:
    """Law: if the feed's lease is lost during the wait, nothing is deleted and the note is restored."""
    await everything(client)
    await client.set(A.lease, "m/nonce", px=60_000)
    before = await all_keys(client) - {A.lease.encode()}

    async def taken(_: float) -> None:
        await client.set(KEYS.lease, "once-1-ab/nonce")
        await client.delete(A.lease)

    with pytest.raises(PollerError, match="another process has taken the lease of acme/old"):
        await forget(client, settings, OLD, clock=StubClock(now=lambda: NOW, sleep=taken))
    assert before <= await all_keys(client)
    assert OLD in await known_feeds(client, NOTED)
    assert await client.get(KEYS.lease) == b"once-1-ab/nonce"


async def test_one_that_is_interrupted_while_deliveries_are_waited_for(client: Redis, settings: Settings) -> None:
    """Law: if forgetting ends before anything is deleted, the note is restored, so what waits is still delivered."""
    await everything(client)
    await client.set(A.lease, "m/nonce", px=60_000)
    before = await all_keys(client)

    async def interrupted(_: float) -> None:
        assert OLD not in await known_feeds(client, NOTED)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await forget(client, settings, OLD, clock=StubClock(now=lambda: NOW, sleep=interrupted))
    assert before <= await all_keys(client)
    assert OLD in await known_feeds(client, NOTED)
    assert not await client.exists(KEYS.lease)


async def test_streams_that_nothing_is_noted_of_are_found_at_the_start(client: Redis, settings: Settings) -> None:
    """Law: streams under the prefix that are neither noted nor configured are noted as orphans."""
    await client.delete(NOTED)
    for prefix, feed in (("other", "acme/x"), ("poller", FEEDS[0]), ("poller", "operations")):
        await client.xadd(FeedKeys.of(prefix, feed).events, {"data": "{}"})
    await store_orphans(client, settings)
    assert await known_feeds(client, NOTED) == [OLD]


async def test_nothing_of_a_removed_subscription_is_left_at_an_orphaned_feed(
    client: Redis, settings: Settings, tmp_path: Path
) -> None:
    """Law: removing a subscription deletes its group at an orphaned feed, which would hold the stream."""
    await everything(client)
    without = configured(tmp_path)
    await registry_of(without, client).sync(filed(without), NOW)
    await subscribing.remove(client, without, "a", clock=Clock())
    assert not [key for key in await all_keys(client) if b":sub:a:" in key]
    assert [group["name"] for group in await client.xinfo_groups(KEYS.events)] == [b"sub:gone"]


async def test_retention_goes_on_under_a_lease_of_its_own(client: Redis, settings: Settings) -> None:
    """Law: an orphaned feed is trimmed under its own lease, which is then free; a held lease is respected."""
    watch = StoreMonitor("warn", clock=StubClock(now=lambda: NOW))
    members = Members(
        client, MemberKeys.of("poller"), name="m", ttl=LEASE, clock=store_clock(), configuration=stated(settings)
    )
    clock = asyncio.get_running_loop().time
    membership = Membership(members, ttl=LEASE, watch=watch, clock=StubClock(monotonic=clock))
    membership.join("poll")
    async with membership.running(), patience("this process to be in the member list"):
        await membership.joined("poll")
        await client.set(KEYS.lease, "another/nonce")
        await trimmed(client, settings, membership)
        assert await client.xlen(KEYS.events) == 3
        await client.delete(KEYS.lease)
        await trimmed(client, settings, membership)
        assert await client.xlen(KEYS.events) == 0
        assert not await client.exists(KEYS.lease)


async def trimmed(client: Redis, settings: Settings, membership: Membership) -> None:
    configurations = Configurations(settings, client, membership, clock=Clock())
    minutes = count(0, 60)  # a minute between two calls
    retaining = RetentionRole(
        settings,
        client,
        {},
        configurations,
        shebang="",
        clock=StubClock(now=lambda: NOW, monotonic=lambda: next(minutes)),
        member="m",
    )
    await retaining.trim_due()
    await retaining.trim_due()


# Laws of :mod:`poller.control.orphans`: which feeds no process has, and where configurations differ.

OLD_FILE, NEW_FILE = MemberConfiguration(("acme/x", "acme/old")), MemberConfiguration(("acme/x", "acme/new"))
KNOWN = ("acme/x", "acme/old", "acme/new", "acme/gone")


def seen(**configurations: MemberConfiguration) -> MemberList:
    """Processes that poll and deliver; one named ``poller`` only polls."""
    roles = {name: frozenset({"poll"} if name == "poller" else {"poll", "deliver"}) for name in configurations}
    return MemberList("1", roles, configurations)


@pytest.mark.parametrize(
    ("there", "own", "expected"),
    [
        (seen(a=OLD_FILE, b=NEW_FILE), (), ("acme/gone",)),
        (seen(b=NEW_FILE), (), ("acme/gone", "acme/old")),
        (seen(b=NEW_FILE), ("acme/old",), ("acme/gone",)),
        (seen(b=NEW_FILE, a=UNSAID), (), ()),
        (MemberList("1", {"b": frozenset({"poll"})}, {}), (), ()),
        (seen(), ("acme/x",), ("acme/gone", "acme/new", "acme/old")),
    ],
)
def test_a_feed_is_orphaned_where_no_live_process_may_have_it(
    there: MemberList, own: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    """Law: a feed is orphaned if neither a live process nor the local configuration has or may have it."""
    assert orphaned(KNOWN, there, own) == expected


def test_what_those_have_that_do_a_role() -> None:
    """Law: only processes with the role count, also for whether one does not say what it has."""
    for alone in (OLD_FILE, UNSAID):
        assert claimed(seen(poller=alone, b=NEW_FILE), role="deliver") == frozenset({"acme/x", "acme/new"})
    assert claimed(seen(poller=UNSAID, b=NEW_FILE)) is None


def settings_of(base_url: str, sink: str, *feeds: str) -> Settings:
    read = [{"resource": feed.partition("/")[2]} for feed in feeds or ("acme/contractTypes",)]
    return Settings.model_validate(
        {
            "sources": [{"name": "acme", "base_url": base_url, "feeds": read}],
            "subscriptions": [{"id": "w", "sink": sink} | ({"feeds": feeds} if feeds else {})],
        }
    )


def test_feeds_that_differ_are_named_whatever_their_order() -> None:
    """Law: a subscription that has other feeds in another file is named; a process that does not say is not."""
    same = "https://api.example.org", "https://hooks.example.org"
    some, more = "acme/contractTypes", "acme/evidenceVariants"
    every, one, two, turned = (
        stated(settings_of(*same, *feeds)) for feeds in ((), (some,), (some, more), (more, some))
    )
    silent = msgspec.structs.replace(one, wanted={})
    assert differences({"a": two, "b": turned, "c": silent}) == []
    for other in (every, one):
        found = differences({"a": two, "b": other, "c": turned, "d": silent})
        assert found == [ConfigurationDifference("feeds of subscription w", (("a", "c"), ("b",)))]


def test_what_differs_is_named_with_both_sides_and_without_values() -> None:
    """Law: differences name the processes of each side, and never show a sink's address."""
    one = stated(settings_of("https://api.example.org/v1", "https://hooks.example.org/T0/s3cr3t"))
    other = stated(settings_of("https://api.example.org/v2", "https://hooks.example.org/T0/other"))
    assert one.feeds == ("acme/contractTypes",)
    assert "s3cr3t" not in repr(one)
    assert differences({"a": one, "b": one, "d": UNSAID}) == []
    found = differences({"a": one, "b": other, "c": one, "d": UNSAID})
    sides = (("a", "c"), ("b",))
    assert found == [
        ConfigurationDifference("base_url of source acme", sides),
        ConfigurationDifference("sink of subscription w", sides),
    ]
    assert found[0].text.startswith("base_url of source acme differs between a, c and b: give all")


@pytest.mark.parametrize(
    ("backlogs", "words"),
    [
        ((), "and no event waits. If it is still needed, put it back into the configuration. If not: `poller feeds"),
        ((OrphanedBacklog("w", 0, 2, paused=False, owner=None),), "and no event waits."),
        (
            (
                OrphanedBacklog("v", 1, 0, paused=True, owner=None),
                OrphanedBacklog("w", 3, 0, paused=False, owner=None),
            ),
            (
                "and 4 events wait for v (paused), w. If it is still needed, put it back into the configuration. "
                "If not: wait until they are delivered, then `poller feeds forget acme/old`"
            ),
        ),
    ],
)
def test_an_orphaned_feed_is_named_with_what_to_do(backlogs: tuple[OrphanedBacklog, ...], words: str) -> None:
    """Law: the text says which events wait for whom, and both remedies: configure the feed again or forget it."""
    waiting = sum(one.events or 0 for one in backlogs)
    assert words in OrphanedFeed("acme/old", 7, waiting, backlogs).text
