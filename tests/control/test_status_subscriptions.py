"""Laws of :mod:`poller.control.status`: one line for each subscription of the file or the registry."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import msgspec
from fakeredis import FakeAsyncRedis

from poller.clock import milliseconds_of
from poller.config.validation import encode_subscription, subscription_of
from poller.control.problems import subscription_problems, unlisted_text
from poller.control.status import SubscriptionStatus, feed_statuses, is_ungranted, subscription_statuses
from poller.control.subscriptions import change, end_unlisted_feeds, filed, registry_of
from poller.delivery.endpoint_health import Health
from poller.delivery.handshake import Awaiting, Granted, HandshakeState, Refused, Unanswered, encoded
from poller.redis.client import commands
from poller.store.keys import ConsumerKeys, FeedKeys, SubscriptionKeys, group_of
from poller.store.subscriptions import Paused
from tests.control.subscribed import FEEDS, NOW, SINK, added, configured


async def test_what_is_known_is_shown(client: FakeAsyncRedis, tmp_path: Path) -> None:
    """A status shows state, reason, since when, attempts, and what waits at each feed and in all."""
    settings = configured(tmp_path)
    await added(client, settings, "a")
    registry = registry_of(settings, client)
    since = NOW - timedelta(hours=1)
    await registry.note_health("a", FEEDS[0], msgspec.json.encode(Health(since, delivered=3, failed=5)))
    await registry.note_health("a", "acme/elsewhere", msgspec.json.encode(Health(delivered=1)))
    until = int((NOW + timedelta(seconds=1)).timestamp() * 1000)
    await client.hset(SubscriptionKeys.of("poller").until, "a", str(until))
    events = FeedKeys.of("poller", FEEDS[0]).events
    await client.xgroup_create(events, group_of("a"), mkstream=True)
    await client.xadd(events, {"data": "{}"}, id=f"{int(NOW.timestamp() * 1000) - 2000}-0")
    await client.hset(ConsumerKeys.of("poller", FEEDS[0], "a").letters, "1-0", "x")
    (one,) = await subscription_statuses(client, settings, now=NOW)
    assert (one.subscription, one.origin, one.state, one.since) == ("a", "run", "failing", "2026-03-02T07:15:00.000Z")
    assert (one.until, one.handshake) == ("2026-03-02T08:15:01.000Z", None)
    assert (one.delivered, one.failed, one.lag_seconds, one.parked, one.dead_letters) == (4, 5, 2.0, 0, 1)
    assert [feed.feed for feed in one.feeds] == [FEEDS[0]]
    assert not one.all_feeds

    await registry.pause("a", Paused("sink", "it answered 410", NOW))
    (one,) = await subscription_statuses(client, settings, now=NOW + timedelta(seconds=1))
    assert (one.state, one.paused_by, one.reason, one.until) == ("paused", "sink", "it answered 410", None)
    assert "whsec" not in msgspec.json.encode(one).decode()


async def test_what_waits_at_a_feed_that_it_lists_no_more_is_named(client: FakeAsyncRedis, tmp_path: Path) -> None:
    """Events at a feed that is no longer listed count as lag and are a problem; failures there do not."""
    settings = configured(tmp_path)
    await added(client, settings, "a")  # lists FEEDS[0] alone
    registry, dropped = registry_of(settings, client), FEEDS[1]
    await registry.note_health("a", dropped, msgspec.json.encode(Health(NOW, delivered=3, failed=5)))
    events = FeedKeys.of("poller", dropped).events
    await client.xgroup_create(events, group_of("a"), mkstream=True)
    (one,) = await subscription_statuses(client, settings, now=NOW)
    assert (one.state, one.delivered, one.failed, one.unlisted) == ("active", 3, 5, ())
    assert [feed.feed for feed in one.feeds] == [FEEDS[0]]
    await client.xadd(events, {"data": "{}"}, id=f"{int(NOW.timestamp() * 1000) - 2000}-0")
    (one,) = await subscription_statuses(client, settings, now=NOW)
    assert (one.state, one.lag_seconds, one.unlisted) == ("active", 2.0, (dropped,))
    assert [feed.feed for feed in one.feeds] == [FEEDS[0], dropped]
    (problem,) = subscription_problems(one, NOW)
    assert problem.startswith(f"events wait at {dropped}, which its feeds do not list any more: ")
    assert unlisted_text(one) == problem


async def test_what_waits_at_a_feed_that_it_left_before_it_began_is_named(
    client: FakeAsyncRedis, tmp_path: Path
) -> None:
    """Law: events at a feed that is no longer listed count where delivery has not begun, until they are dropped."""
    settings = configured(tmp_path)
    await added(client, settings, "a")  # lists FEEDS[0] alone
    registry, keys = registry_of(settings, client), FeedKeys.of("poller", FEEDS[0])
    await client.hset(keys.state, "sequence", "2")
    for number in (1, 2):
        await client.xadd(
            keys.events, {"data": b'{"sequence":"%020d"}' % number}, id=f"{milliseconds_of(NOW) - 3 + number}-0"
        )
    one = subscription_of({"id": "a", "sink": SINK, "feeds": FEEDS[1:]}, settings, where="x")
    await change(registry, settings, one)

    async def seen(after: timedelta) -> tuple[int | None, tuple[str, ...], int]:
        await end_unlisted_feeds(client, settings, await registry.all(), now=NOW + after, counts=settings.retention.age)
        (status,) = await subscription_statuses(client, settings, now=NOW)
        return status.lag_entries, status.unlisted, len(list(subscription_problems(status, NOW)))

    assert await seen(timedelta(0)) == (2, (FEEDS[0],), 1)
    assert await seen(settings.retention.age) == (None, (), 0)


async def test_what_its_sink_has_not_granted_is_failing(client: FakeAsyncRedis, tmp_path: Path) -> None:
    """A subscription without a grant is failing, with since when, why and the remedy; without validate it is active."""
    settings, registry = configured(tmp_path), registry_of(configured(tmp_path), client)

    async def seen(state: HandshakeState | None, *, validate: bool = True) -> SubscriptionStatus:
        one = subscription_of({"id": "a", "sink": SINK, "validate": validate}, settings, where="x")
        if not (await registry.all()).registered:
            await registry.add("a", encode_subscription(one), (), NOW)
        await registry.change("a", encode_subscription(one))
        if state is not None:
            await registry.note_handshake("a", encoded(state))
        return (await subscription_statuses(client, settings, now=NOW))[0]

    assert ((await seen(None)).state, (await seen(None)).handshake) == ("active", None)
    found = await seen(Refused("it answered 405", NOW))
    assert (found.state, found.handshake, found.since) == ("failing", "refused", "2026-03-02T08:15:00.000Z")
    assert found.error is not None
    assert found.error.startswith("it answered 405; let it answer OPTIONS with WebHook-Allowed-Origin")
    problem = f"its sink has not granted events for 0 s (refused): {found.error}"
    assert list(subscription_problems(found, NOW)) == [problem]
    assert is_ungranted(await registry.all(), "a") is True
    waiting = await seen(Awaiting("p.example", "0" * 64))
    assert (waiting.state, waiting.handshake, waiting.since) == ("failing", "awaiting callback", None)
    assert "WebHook-Request-Callback" in str(waiting.error)
    assert (await seen(Unanswered("it answered 503", NOW))).handshake == "unanswered"
    granted = await seen(Granted("p.example"))
    assert (granted.state, granted.handshake, granted.error) == ("active", "granted", None)
    assert is_ungranted(await registry.all(), "a") is False
    unasked = await seen(Refused("no"), validate=False)
    assert (unasked.state, unasked.handshake, unasked.error) == ("active", None, None)
    assert is_ungranted(await registry.all(), "a") is None
    await registry.pause("a", Paused("operator", "moving", NOW))
    assert (await seen(Refused("no"))).state == "paused"


async def test_one_of_the_file_is_shown_before_anybody_knows_it(client: FakeAsyncRedis, tmp_path: Path) -> None:
    """A subscription of the file is "new" until a daemon has seen it, with all feeds and an unknown lag."""
    settings = configured(tmp_path, "b")
    await added(client, settings, "a")
    found = await subscription_statuses(client, settings, now=NOW)
    assert [(one.subscription, one.origin, one.state) for one in found] == [
        ("a", "run", "active"),
        ("b", "file", "new"),
    ]
    assert ([feed.feed for feed in found[1].feeds], found[1].all_feeds) == (list(FEEDS), True)
    assert (found[1].lag_entries, found[1].lag_seconds) == (None, None)
    await registry_of(settings, client).sync(filed(settings), NOW)
    assert (await subscription_statuses(client, settings, now=NOW))[1].state == "active"


async def test_what_waits_where_delivery_has_not_begun_is_in_the_lag(client: FakeAsyncRedis, tmp_path: Path) -> None:
    """Law: before any process delivers, the lag has what came since the subscription was added, and its age."""
    settings, keys = configured(tmp_path), FeedKeys.of("poller", FEEDS[0])
    for number in (1, 2, 3):
        await client.hset(keys.state, "sequence", str(number))
        moment = milliseconds_of(NOW - timedelta(seconds=10 - number))
        await client.xadd(keys.events, {"data": b'{"sequence":"%020d"}' % number}, id=f"{moment}-0")
        if number == 1:
            await added(client, settings, "a")
    (one,) = await subscription_statuses(client, settings, now=NOW)
    assert (one.lag_entries, one.lag_seconds) == (2, 8.0)


async def test_what_another_version_wrote_is_shown_as_far_as_it_can_be(client: FakeAsyncRedis, tmp_path: Path) -> None:
    """Unreadable settings, health or handshake leave the other columns readable."""
    settings = configured(tmp_path)
    await registry_of(settings, client).add("a", b'{"sink":7}', (), NOW)
    await registry_of(settings, client).note_health("a", FEEDS[0], b"[]")
    await registry_of(settings, client).note_handshake("a", b"[]")
    (one,) = await subscription_statuses(client, settings, now=NOW)
    assert (one.sink, one.state, one.handshake) == ("?", "active", None)


async def test_one_key_of_another_type_is_named_and_the_rest_is_shown(store_url: str, tmp_path: Path) -> None:
    """What cannot be read of a feed or a subscription makes that one failing; the others are shown as they are."""
    settings = configured(tmp_path)
    async with commands(store_url) as client:
        for name in ("a", "b"):
            await added(client, settings, name)
        broken = ConsumerKeys.of("poller", FEEDS[0], "a").parked, FeedKeys.of("poller", FEEDS[1]).snapshots
        await client.set(broken[0], "x")
        await client.set(broken[1], "x")
        await client.hset(FeedKeys.of("poller", FEEDS[0]).state, "sequence", "7")
        one, other = await feed_statuses(client, settings, now=NOW)
        assert (one.state, one.events, other.state) == ("never read", 7, "failing")
        assert broken[1] in str(other.error)
        a, b = await subscription_statuses(client, settings, now=NOW)
        assert (a.state, b.state, b.error, [feed.feed for feed in b.feeds]) == ("failing", "active", None, [FEEDS[0]])
        assert broken[0] in str(a.error)
        await client.hset(FeedKeys.of("poller", FEEDS[0]).state, "sequence", "many")
        assert [status.state for status in await feed_statuses(client, settings, now=NOW)] == ["failing", "failing"]
        assert [status.state for status in await subscription_statuses(client, settings, now=NOW)] == ["failing"] * 2
