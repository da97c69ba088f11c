"""Laws of :mod:`poller.service.subscribing`: what may be asked of a subscription, and what is left of a removed one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from fakeredis import FakeAsyncRedis

from poller.delivery.health import Health
from poller.errors import ConfigurationError, SubscriptionTaken, SubscriptionUnknown
from poller.service import subscribing
from poller.service.subscribing import filed, registry_of
from poller.store.keys import FeedKeys, PairKeys, group_of, operations_key
from poller.store.registrations import Paused
from tests.service.subscribed import FEEDS, NOW, added, configured


async def test_the_file_has_the_last_word(client: FakeAsyncRedis, tmp_path: Path) -> None:
    """What the file holds is neither added nor removed; taken out of it, it does not go on, but may be removed."""
    settings = configured(tmp_path, "a")
    registry = registry_of(settings, client)
    with pytest.raises(SubscriptionTaken):
        await added(client, settings, "a")
    with pytest.raises(SubscriptionUnknown, match="no daemon has been started"):
        await subscribing.pause(client, settings, "a", reason="", now=NOW)
    with pytest.raises(ConfigurationError, match="take it out of there"):
        await subscribing.remove(client, settings, "a")
    await registry.sync(filed(settings), NOW)
    assert await subscribing.pause(client, settings, "a", reason="so", now=NOW) is None
    assert await subscribing.resume(client, settings, "a", now=NOW) == Paused("operator", "so", NOW)
    with pytest.raises(ConfigurationError, match="take it out of there"):
        await subscribing.remove(client, settings, "a")

    without = configured(tmp_path)
    await registry.sync(filed(without), NOW)
    with pytest.raises(ConfigurationError, match="put it back there"):
        await subscribing.resume(client, without, "a", now=NOW)
    await subscribing.remove(client, without, "a")
    assert not (await registry.all()).registered


async def test_nothing_is_left_of_a_removed_one(client: FakeAsyncRedis, tmp_path: Path) -> None:
    """Group, state, parked deliveries and dead letters go at every feed, whether or not it gets that feed now."""
    settings = configured(tmp_path)
    await added(client, settings, "a")
    for feed in FEEDS:
        await client.xgroup_create(FeedKeys.of("poller", feed).events, group_of("a"), mkstream=True)
        pair = PairKeys.of("poller", feed, "a")
        await client.hset(pair.state, "place", "0-0")
        await client.hset(pair.parked, "1-0", "x")
        await client.hset(pair.letters, "1-0", "x")
        await client.zadd(pair.letter_times, {"1-0": 1})
    await subscribing.remove(client, settings, "a")
    streams = {FeedKeys.of("poller", feed).events.encode() for feed in FEEDS}
    assert set(await client.keys()) == {*streams, b"poller:{subscriptions}:version"}
    assert not any([await client.xinfo_groups(stream) for stream in streams])


@pytest.mark.parametrize("ends", [True, False])
async def test_who_delivers_is_told_before_its_keys_go(client: FakeAsyncRedis, tmp_path: Path, *, ends: bool) -> None:
    """The registry forgets it first; its leases are waited for, for a while, and then they go as well."""
    settings = configured(tmp_path)
    await added(client, settings, "a")
    lease = PairKeys.of("poller", FEEDS[0], "a").lease
    await client.set(lease, "theirs")
    waited: list[bool] = []

    async def sleep(_: float) -> None:
        assert not (await registry_of(settings, client).all()).registered
        assert await client.exists(lease)
        waited.append(True)
        if ends and len(waited) == 3:
            await client.delete(lease)

    await subscribing.remove(client, settings, "a", sleep=sleep)
    assert len(waited) == (3 if ends else 50)
    assert not await client.exists(lease)


async def test_what_an_operator_does_is_announced(client: FakeAsyncRedis, tmp_path: Path) -> None:
    """Pause and resume, each once, with the reason; what changes nothing is not."""
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
    """For it takes the place of that other pause; a sink's own pause stays, and nothing is announced."""
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
    """What it counted stays, since when it fails does not; health of another version is left as it is."""
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


async def _announced(client: FakeAsyncRedis) -> list[dict[str, Any]]:
    entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", await client.xrange(operations_key("poller")))
    return [msgspec.json.decode(fields[b"data"]) for _, fields in entries]
