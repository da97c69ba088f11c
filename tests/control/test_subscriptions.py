"""Laws of :mod:`poller.control.subscriptions`: sample events, and commands about subscriptions."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from fakeredis import FakeAsyncRedis

from poller.clock import Clock, milliseconds_of
from poller.config.validation import subscription_of
from poller.control import subscriptions as subscribing
from poller.control.orphans import stated
from poller.control.subscriptions import (
    TYPE,
    NotGranted,
    SampleResult,
    ScheduledAttempts,
    filed,
    registry_of,
    sample,
)
from poller.delivery.delivery_codec import Delivery, encode
from poller.delivery.endpoint_health import Health
from poller.delivery.handshake import Granted, Refused, encoded
from poller.delivery.signing import new_secret
from poller.delivery.sinks.base import Failure
from poller.errors import (
    ConfigurationError,
    SubscriptionFiled,
    SubscriptionResumed,
    SubscriptionTaken,
    SubscriptionUnknown,
)
from poller.store.consumer_state import FORGET
from poller.store.keys import ConsumerKeys, FeedKeys, MemberKeys, group_of, operations_key
from poller.store.members import UNSAID, MemberConfiguration, MemberList, Members
from poller.store.subscriptions import Paused
from tests.control.subscribed import FEEDS, NOW, SINK, added, configured
from tests.harness.clock import StubClock, store_clock
from tests.receiver import Reply, receiving
from tests.servers import free_port

KEY = bytes(range(32))
_LEFT = {b"poller:{subscriptions}:version", b"poller:{subscriptions}:changes"}  # when there are no subscriptions


async def sampled(
    tmp_path: Path,
    url: str,
    handshake: bytes | None = None,
    brought: bytes | None = None,
    now: Callable[[], datetime] = lambda: NOW,
    **more: Any,
) -> SampleResult:
    values = {"id": "a", "sink": url, "allow_private": True, **more}
    one = subscription_of(values, configured(tmp_path), where="x")
    secrets = (new_secret(KEY),)
    return await sample(
        one,
        secrets=secrets,
        handshake=handshake,
        environ={"TOKEN": "t0ken-t0ken"},
        clock=StubClock(now=now, draws=iter(["e1"])),
        brought=brought,
    )


async def test_the_sample_is_sent_as_events_are(tmp_path: Path) -> None:
    """A sample has the subscription's headers, credential and signature, and says that it is a test and of whom."""
    async with receiving(Reply(200, body=b"thanks")) as receiver:
        more: dict[str, Any] = {"headers": {"X-Tenant": "seven"}, "auth": {"token_env": "TOKEN"}}
        found = await sampled(tmp_path, f"{receiver.url}/hook", **more)
        (request,) = receiver.requests
    assert (found.outcome.status, found.outcome.excerpt) == (200, b"thanks")
    assert request.body == found.sent.body
    assert (request.header("x-tenant"), request.header("authorization")) == ("seven", "Bearer t0ken-t0ken")
    assert JSONFormat().write(JSONFormat().read(CloudEvent, request.body)) == request.body
    event = json.loads(request.body)
    assert (event["type"], event["subject"], event["id"], event["source"]) == (TYPE, "a", "e1", "poller")
    signed = b"e1.%d." % NOW.timestamp() + request.body
    signature = base64.b64encode(hmac.digest(KEY, signed, "sha256")).decode()
    assert request.header("webhook-signature") == f"v1,{signature}"


async def test_what_is_shown_is_the_request_that_was_sent(tmp_path: Path) -> None:
    """Timestamp and signature are those of the request, though another second has begun."""
    seconds = count()
    async with receiving() as receiver:
        found = await sampled(tmp_path, receiver.url, now=lambda: NOW + timedelta(seconds=next(seconds)))
        (request,) = receiver.requests
    shown = dict(line.split(": ", 1) for line in found.sent.head[1:])
    assert shown["webhook-timestamp"] == request.header("webhook-timestamp")
    assert shown["webhook-signature"] == f"{(request.header('webhook-signature') or '')[:10]}…"


async def test_the_sample_has_what_a_request_has_brought(tmp_path: Path) -> None:
    """An expired credential is named if the sink refuses it; an unreadable one is an error."""
    kept = b'{"credentialtype":"ACCESSTOKEN","accesstoken":"brought","accesstokenexpiresutc":"2026-03-02T08:14:00Z"}'
    async with receiving(Reply(401)) as receiver:
        found = await sampled(tmp_path, receiver.url, brought=kept)
        assert receiver.requests[0].header("authorization") == "Bearer brought"
        assert found.outcome.error == "the sink answered 401; the access token expired at 2026-03-02T08:14:00Z"
        with pytest.raises(ConfigurationError, match="send it again"):
            await sampled(tmp_path, receiver.url, brought=b"brought")
        assert receiver.count == 1


_TEXT = "A test: no record has changed."
_VALUE = "a sample value"


@pytest.mark.parametrize(
    ("more", "data"),
    [
        ({}, {"text": _TEXT, "cause": "delta"}),
        (
            {"fields": {"drop": ["/reason", "/who/name"]}},
            {"record": {"id": "a", "text": _TEXT, "who": {}}, "revision": 1, "cause": "delta"},
        ),
        (
            {"fields": {"pick": ["/who", "/who/name"]}},
            {"record": {"id": "a", "who": {"name": _VALUE}}, "revision": 1, "cause": "delta"},
        ),
        ({"fields": {"drop": ["/text"]}, "thin": True}, {"revision": 1, "cause": "delta"}),
    ],
)
async def test_the_sample_shows_what_is_left_of_an_event(
    tmp_path: Path, more: dict[str, Any], data: dict[str, Any]
) -> None:
    """A sample is cut as events are: what the receiver gets, and what is shown, has no dropped value."""
    async with receiving() as receiver:
        found = await sampled(tmp_path, receiver.url, **more)
        (request,) = receiver.requests
    event = json.loads(request.body)
    assert (event["data"], event["cause"]) == (data, "delta")
    assert request.body == found.sent.body


@pytest.mark.parametrize("mode", ["binary", "batch"])
async def test_in_its_own_mode(tmp_path: Path, mode: str) -> None:
    """A sample is sent in the subscription's mode: attributes as headers, or a batch of one."""
    async with receiving() as receiver:
        await sampled(tmp_path, receiver.url, mode=mode)
        (request,) = receiver.requests
    if mode == "binary":
        assert request.header("ce-type") == TYPE
    else:
        assert [event["type"] for event in json.loads(request.body)] == [TYPE]


async def test_without_a_grant_nothing_is_sent(tmp_path: Path) -> None:
    """A sample is sent to a validated sink only after its grant, with the granted origin."""
    async with receiving() as receiver:
        for kept in (None, encoded(Refused("no")), b"[]"):
            with pytest.raises(NotGranted):
                await sampled(tmp_path, receiver.url, kept, validate=True)
        assert not receiver.requests
        await sampled(tmp_path, receiver.url, encoded(Granted("poller.example.org")), validate=True)
        assert receiver.requests[0].header("webhook-request-origin") == "poller.example.org"


async def test_a_sink_that_is_not_there(tmp_path: Path) -> None:
    """An unreachable sink is an outcome, not an exception."""
    assert (await sampled(tmp_path, f"http://127.0.0.1:{free_port()}")).outcome.failure is Failure.REFUSED


# Commands about subscriptions, and removals.


async def test_the_file_has_the_last_word(client: FakeAsyncRedis, tmp_path: Path) -> None:
    """A subscription of the file is neither added nor removed; once out of the file it can only be removed."""
    settings = configured(tmp_path, "a")
    registry = registry_of(settings, client)
    with pytest.raises(SubscriptionTaken):
        await added(client, settings, "a")
    with pytest.raises(SubscriptionUnknown, match="no daemon has been started"):
        await subscribing.pause(client, settings, "a", reason="", now=NOW)
    with pytest.raises(ConfigurationError, match="remove it there"):
        await subscribing.remove(client, settings, "a", clock=Clock())
    await registry.sync(filed(settings), NOW)
    assert await subscribing.pause(client, settings, "a", reason="so", now=NOW) is None
    assert await subscribing.resume(client, settings, "a", now=NOW) == Paused("operator", "so", NOW)
    with pytest.raises(ConfigurationError, match="remove it there"):
        await subscribing.remove(client, settings, "a", clock=Clock())

    without = configured(tmp_path)
    await registry.sync(filed(without), NOW)
    with pytest.raises(ConfigurationError, match="put it back"):
        await subscribing.resume(client, without, "a", now=NOW)
    await subscribing.remove(client, without, "a", clock=Clock())
    assert not (await registry.all()).registered


async def test_what_no_running_process_lists_is_not_resumed(client: FakeAsyncRedis, tmp_path: Path) -> None:
    """A subscription that live processes no longer list is not resumed, unless one of them may list it."""
    settings = configured(tmp_path, "a")
    registry = registry_of(settings, client)
    await registry.sync(filed(settings), NOW)
    removed = Paused("removed", "no file lists it", NOW)
    for others in ([UNSAID, stated(configured(tmp_path))], [stated(settings), stated(configured(tmp_path))], []):
        await registry.pause("a", removed)
        for number, said in enumerate(others):
            await joined(client, f"m{number}", said)
        assert await subscribing.resume(client, settings, "a", now=NOW) == removed
        for number, _ in enumerate(others):
            await left(client, f"m{number}")
    await joined(client, "m", stated(configured(tmp_path)))
    await registry.pause("a", Paused("operator", "so", NOW))
    assert await subscribing.resume(client, settings, "a", now=NOW)
    await registry.pause("a", removed)
    with pytest.raises(SubscriptionFiled, match="no running process has"):
        await subscribing.resume(client, settings, "a", now=NOW)
    assert (await registry.all()).paused == {"a": removed}


async def test_what_a_running_process_lists_is_not_removed(client: FakeAsyncRedis, tmp_path: Path) -> None:
    """With a file that lacks it, a subscription of a running process's file is neither removed nor resumed.

    It can be removed when that process has ended. Nothing was changed before that, and one that was added at run time
    is removed in any case.
    """
    settings, without = configured(tmp_path, "a"), configured(tmp_path)
    registry = registry_of(without, client)
    await registry.sync(filed(settings), NOW)
    for name, said in {"x": UNSAID, "y": stated(without), "z": stated(settings)}.items():
        await joined(client, name, said)
    before = await registry.all()
    with pytest.raises(SubscriptionFiled, match="in the configuration file of z, which runs: remove it there"):
        await subscribing.remove(client, without, "a", clock=Clock())
    with pytest.raises(SubscriptionFiled, match="in the configuration file of z, not in this one"):
        await subscribing.resume(client, without, "a", now=NOW)
    assert (await registry.all()).version == before.version
    await left(client, "z")
    await subscribing.remove(client, without, "a", clock=Clock())
    await added(client, without, "a")
    await joined(client, "z", stated(settings))
    await subscribing.remove(client, without, "a", clock=Clock())
    assert not (await registry.all()).registered


async def left(client: FakeAsyncRedis, name: str) -> None:
    keys, ttl, clock = MemberKeys.of("poller"), timedelta(minutes=1), store_clock()
    await Members(client, keys, name=name, ttl=ttl, clock=clock).leave(MemberList())


async def joined(client: FakeAsyncRedis, name: str, said: MemberConfiguration) -> None:
    keys, ttl, clock = MemberKeys.of("poller"), timedelta(minutes=1), store_clock()
    await Members(client, keys, name=name, ttl=ttl, clock=clock, configuration=said).beat(("deliver",), MemberList())


async def test_nothing_is_left_of_a_removed_one(client: FakeAsyncRedis, tmp_path: Path) -> None:
    """Removing deletes group, state, retries and dead letters at every feed, listed or not."""
    settings = configured(tmp_path)
    await added(client, settings, "a")
    for feed in FEEDS:
        await client.xgroup_create(FeedKeys.of("poller", feed).events, group_of("a"), mkstream=True)
        pair = ConsumerKeys.of("poller", feed, "a")
        await client.hset(pair.state, "place", "0-0")
        await client.hset(pair.parked, "1-0", "x")
        await client.hset(pair.letters, "1-0", "x")
        await client.zadd(pair.letter_times, {"1-0": 1})
    await subscribing.remove(client, settings, "a", clock=Clock())
    streams = {FeedKeys.of("poller", feed).events.encode() for feed in FEEDS}
    assert set(await client.keys()) == {*streams, *_LEFT}
    assert not any([await client.xinfo_groups(stream) for stream in streams])


@pytest.mark.parametrize("ends", [True, False])
async def test_who_delivers_is_told_before_its_keys_go(client: FakeAsyncRedis, tmp_path: Path, *, ends: bool) -> None:
    """Removing pauses first, waits a while for the consumers' leases, and then deletes."""
    settings = configured(tmp_path)
    await added(client, settings, "a")
    lease = ConsumerKeys.of("poller", FEEDS[0], "a").lease
    await client.set(lease, "theirs")
    waited: list[bool] = []

    async def sleep(_: float) -> None:
        assert (await registry_of(settings, client).all()).paused.keys() == {"a"}
        assert await client.exists(lease)
        waited.append(True)
        if ends and len(waited) == 3:
            await client.delete(lease)

    await subscribing.remove(client, settings, "a", clock=StubClock(now=lambda: NOW, sleep=sleep))
    assert len(waited) == (3 if ends else 50)
    assert not await client.exists(lease)


async def test_an_interrupted_removal_leaves_nothing_to_the_next_of_its_name(
    client: FakeAsyncRedis, tmp_path: Path
) -> None:
    """An interrupted removal keeps the id registered, so it cannot be added; a second removal completes."""
    settings = configured(tmp_path)
    await added(client, settings, "a")
    pair = ConsumerKeys.of("poller", FEEDS[0], "a")
    await client.set(pair.lease, "theirs")
    await client.hset(pair.parked, "1-0", "x")

    async def sleep(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await subscribing.remove(client, settings, "a", clock=StubClock(now=lambda: NOW, sleep=sleep))
    assert await client.exists(pair.parked)
    with pytest.raises(SubscriptionTaken):
        await added(client, settings, "a")
    (pause,) = (await registry_of(settings, client).all()).paused.values()
    assert "remove it again" in pause.reason

    await client.delete(pair.lease)
    await subscribing.remove(client, settings, "a", clock=Clock())
    assert set(await client.keys()) == _LEFT


async def test_a_removal_spares_a_later_subscription_of_the_same_id(client: FakeAsyncRedis, tmp_path: Path) -> None:
    """While a removal waits, another may end and the id may be given again: the new subscription stays, unpaused.

    So does what it has at its feeds.
    """
    settings = configured(tmp_path)
    await added(client, settings, "a")
    pair, registry = ConsumerKeys.of("poller", FEEDS[0], "a"), registry_of(settings, client)
    lease = pair.lease
    await client.set(lease, "theirs")
    later, wanted = NOW + timedelta(seconds=1), subscription_of({"id": "a", "sink": SINK}, settings, where="x")

    async def sleep(_: float) -> None:
        if await client.delete(lease):
            await subscribing.remove(client, settings, "a", clock=Clock())
            await subscribing.add(registry, settings, wanted, secrets=(), now=later)
            await client.hset(pair.state, "place", "1-0")

    with pytest.raises(SubscriptionUnknown):
        await subscribing.remove(client, settings, "a", clock=StubClock(now=lambda: NOW, sleep=sleep))
    kept = await registry.all()
    assert kept.registered["a"].since == later
    assert not kept.paused
    assert await client.hget(pair.state, "place") == b"1-0"


async def test_a_removal_spares_one_that_is_resumed_meanwhile(client: FakeAsyncRedis, tmp_path: Path) -> None:
    """What a subscription has at its feeds stays if somebody resumes it while its removal waits."""
    settings = configured(tmp_path)
    await added(client, settings, "a")
    pair, registry = ConsumerKeys.of("poller", FEEDS[0], "a"), registry_of(settings, client)
    await client.set(pair.lease, "theirs")
    await client.hset(pair.state, "place", "1-0")

    async def sleep(_: float) -> None:
        await subscribing.resume(client, settings, "a", now=NOW)
        await client.delete(pair.lease)

    with pytest.raises(SubscriptionResumed, match="resumed meanwhile: remove it again"):
        await subscribing.remove(client, settings, "a", clock=StubClock(now=lambda: NOW, sleep=sleep))
    kept = await registry.all()
    assert "a" in kept.registered
    assert not kept.paused
    assert await client.hget(pair.state, "place") == b"1-0"
    with pytest.raises(SubscriptionResumed):  # or while its state at the feeds is being deleted
        await registry.remove("a", kept.registered["a"].since)
    await subscribing.remove(client, settings, "a", clock=Clock())
    assert not await client.exists(pair.state)


async def test_a_trim_during_a_removal_leaves_nothing(client: FakeAsyncRedis, tmp_path: Path) -> None:
    """A dead letter that a trim writes when the state at the feeds is deleted already is deleted with the rest."""
    settings = configured(tmp_path)
    await added(client, settings, "a")
    pair, deleted = ConsumerKeys.of("poller", FEEDS[0], "a"), client.eval

    async def then_trimmed(script: str, number: int, *rest: str) -> object:
        answer = await deleted(script, number, *rest)
        if script == FORGET:
            await client.hset(pair.state, mapping={"overruns": "1", "lost": "3"})
            await client.hset(pair.letters, "0-1", "x")
            await client.zadd(pair.letter_times, {"0-1": 1})
        return answer

    client.eval = then_trimmed  # type: ignore[method-assign, assignment] # what it is called with here
    await subscribing.remove(client, settings, "a", clock=Clock())
    assert set(await client.keys()) == _LEFT


async def test_what_an_operator_does_is_announced(client: FakeAsyncRedis, tmp_path: Path) -> None:
    """Pause and resume are announced once each, with the reason; a command that changes nothing is not."""
    settings = configured(tmp_path)
    await added(client, settings, "a")
    await subscribing.resume(client, settings, "a", now=NOW)
    await subscribing.pause(client, settings, "a", reason="moving", now=NOW)
    await subscribing.pause(client, settings, "a", reason="again", now=NOW)
    await subscribing.resume(client, settings, "a", now=NOW)
    await subscribing.resume(client, settings, "a", now=NOW)
    told = await _announced(client)
    assert [(one["type"], one["subject"], one["data"]) for one in told] == [
        ("poller.subscription.paused.v1", "a", {"by": "operator", "reason": "moving"}),
        ("poller.subscription.resumed.v1", "a", {"by": "operator", "reason": "it had been paused: moving"}),
    ]


async def test_a_pause_of_one_that_left_the_file_is_announced(client: FakeAsyncRedis, tmp_path: Path) -> None:
    """An operator's pause replaces that of a missing file, and is announced; a sink's pause stays."""
    settings = configured(tmp_path)
    await added(client, settings, "a")
    await added(client, settings, "b")
    registry = registry_of(settings, client)
    await registry.pause("a", Paused("removed", "gone", NOW))
    await registry.pause("b", Paused("sink", "410", NOW))
    for one in "ab":
        await subscribing.pause(client, settings, one, reason="moving", now=NOW)
    told = [one["subject"] for one in await _announced(client)]
    assert told == ["a"]


async def test_resumed_is_not_failing(client: FakeAsyncRedis, tmp_path: Path) -> None:
    """Resuming keeps the counters and ends the failing state; health of another version stays unchanged."""
    settings = configured(tmp_path)
    await added(client, settings, "a")
    registry = registry_of(settings, client)
    bad = Health(failing_since=NOW, failed=9, unwell=True)
    for feed in FEEDS:
        await registry.note_health("a", feed, msgspec.json.encode(bad))
    await registry.pause("a", Paused("failures", "5 d", NOW))
    await subscribing.resume(client, settings, "a", now=NOW)
    kept = await registry.all()
    for feed in FEEDS:
        found = msgspec.json.decode(kept.health["a"][feed], type=Health)
        assert (found.failing_since, found.failed, found.unwell) == (None, 9, True)
    assert not kept.paused
    assert subscribing.health_resumed(b"[]") == b"[]"


async def test_attempts_that_wait_are_counted_with_the_first_moment(client: FakeAsyncRedis, tmp_path: Path) -> None:
    """Only retries due later count, not those due now, blocked by another, or paused by the sink."""
    settings = configured(tmp_path)
    await added(client, settings, "a")
    kept = await registry_of(settings, client).all()
    assert await subscribing.scheduled_attempts(client, settings, kept, "a", now=NOW) is None
    later = milliseconds_of(NOW) + 60_000
    waiting = {
        "1-0": Delivery("K", due=later + 5),
        "2-0": Delivery("K"),
        "3-0": Delivery("L", due=later),
        "4-0": Delivery("M", due=later - 7, paused=later - 9),
        "5-0": Delivery("N", due=later - 60_000),
    }
    keys = [ConsumerKeys.of("poller", feed, "a").parked for feed in FEEDS]
    await client.hset(keys[0], mapping={entry: encode(one) for entry, one in waiting.items()})
    await client.hset(keys[1], "6-0", b"[]")
    found = await subscribing.scheduled_attempts(client, settings, kept, "a", now=NOW)
    assert found == ScheduledAttempts(2, NOW + timedelta(minutes=1))


async def _announced(client: FakeAsyncRedis) -> list[dict[str, Any]]:
    entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", await client.xrange(operations_key("poller")))
    return [msgspec.json.decode(fields[b"data"]) for _, fields in entries]


async def test_a_feed_that_is_listed_later_is_new_after_its_last_entry_then(
    client: FakeAsyncRedis, tmp_path: Path
) -> None:
    """Law: a change notes where the stream of each feed that it adds ends, and leaves what was noted of the others."""
    settings, streams = configured(tmp_path), [FeedKeys.of("poller", feed).events for feed in FEEDS]
    registry = registry_of(settings, client)
    for number in (1, 2):
        for stream in streams:
            await client.xadd(stream, {"data": "{}"}, id=f"{number}-0")
        if number == 1:
            await added(client, settings, "a")
    wanted = subscription_of({"id": "a", "sink": SINK, "feeds": FEEDS}, settings, where="x")
    await subscribing.change(registry, settings, wanted)
    one = (await registry.all()).registered["a"]
    assert [one.new_after(feed) for feed in FEEDS] == ["1-0", "2-0"]
