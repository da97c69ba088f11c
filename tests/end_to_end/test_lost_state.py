"""A store loses data under a daemon with webhooks: the loss is detected and announced, and no sink gets a flood."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import pytest

from poller.clock import rfc3339
from poller.store.keys import FEED_KEYS
from poller.store.stream import EntryId
from tests.harness.checker import judge
from tests.harness.json_values import read
from tests.harness.processes import daemon
from tests.harness.reading import reading
from tests.harness.subscribed import FEEDS, Wish, subscribed
from tests.harness.waiting import patience
from tests.stores import all_keys, flushed

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.processes import Daemon, Line
    from tests.harness.subscribed import Subscribed

_WISHES = (Wish("earliest"), Wish("now", lines='start = "now"'))
_LOST = "poller.feed.lost.v1"
_IDS = ["acme/" + feed for feed in FEEDS]


async def test_everything_gone_under_a_running_daemon(tmp_path: Path, store: str) -> None:
    """After FLUSHALL the new baseline reaches no sink, later changes reach each, and each feed is reported once."""
    async with (
        subscribed(tmp_path, _WISHES, store=store, changes_per_second=30) as scene,
        daemon(scene.config()) as running,
    ):
        await scene.more("now", 10)
        before = await _last_sequences(scene)
        await flushed(scene.played.client)
        await _no_storm(scene, before)
        assert sorted(line["feed"] for line in _told(running, "feed lost")) == sorted(_IDS), running
        assert [line["lost"] for line in _told(running, "subscriptions brought back")] == [[]], running


@pytest.mark.thorough
async def test_the_feeds_gone_while_nobody_ran(tmp_path: Path, store: str) -> None:
    """A feed whose keys were lost while no daemon ran is reported as lost, because the registry still knows it."""
    async with subscribed(tmp_path, _WISHES, store=store, changes_per_second=30) as scene:
        async with daemon(scene.config()) as first:
            await scene.more("now", 10)
            await first.kill()
        client = scene.played.client
        for key in await all_keys(client):
            if key.startswith(b"poller:{acme/"):
                await client.delete(key)
        async with daemon(scene.config()) as second:
            await _no_storm(scene, dict.fromkeys(FEEDS, 0))
            assert not _told(second, "subscriptions brought back"), second


@pytest.mark.thorough
@pytest.mark.usefixtures("one_server")  # all its keys go in one transaction
async def test_everything_gone_and_registered_again_by_another(tmp_path: Path, store: str) -> None:
    """Subscriptions that another process has registered since are delivered; that the registry is new is noticed."""
    async with (
        subscribed(tmp_path, _WISHES[1:], store=store, changes_per_second=30) as scene,
        daemon(scene.config()) as running,
    ):
        await scene.more("now", 10)
        client, name = scene.played.client, "poller:{subscriptions}"
        kept = cast("dict[bytes, bytes]", await client.hgetall(f"{name}:registry"))
        later = rfc3339(datetime.now(UTC))
        again = {one: json.dumps(json.loads(value) | {"since": later}) for one, value in kept.items()}
        async with client.pipeline(transaction=True) as pipe:
            pipe.flushall()
            pipe.set(f"{name}:version", cast("bytes", await client.get(f"{name}:version")))
            pipe.hset(f"{name}:registry", mapping=cast("Any", again))
            await pipe.execute()
        await scene.more("now", 10)
        assert {(*one["lost"], *one["paused"]) for one in _told(running, "subscriptions brought back")} == {()}, running


@pytest.mark.thorough
async def test_a_half_gone_under_a_running_daemon(tmp_path: Path, store: str) -> None:
    """A feed that lost its state or its snapshots is treated as lost, and its stream goes on."""
    async with (
        subscribed(tmp_path, _WISHES, store=store, changes_per_second=30) as scene,
        daemon(scene.config()),
    ):
        await scene.more("now", 10)
        for feed, part in zip(FEEDS, ("state", "snapshots"), strict=True):
            await scene.played.client.delete(f"poller:{{acme/{feed}}}:{part}")
        await _no_storm(scene, dict.fromkeys(FEEDS, 0))


@pytest.mark.thorough
@pytest.mark.usefixtures("one_server")  # a backup of all its keys, as of one instant
async def test_an_older_backup_under_a_running_daemon(tmp_path: Path, store: str) -> None:
    """After a rollback the later changes are published again without gaps, equal changes with equal ids."""
    async with (
        subscribed(tmp_path, _WISHES[:1], store=store, changes_per_second=30) as scene,
        daemon(scene.config()) as running,
    ):
        await scene.more("earliest", 10)
        backup, before = await _backup(scene), await _last_sequences(scene)
        async with patience("new events of each feed"):
            while any(number <= before[feed] + 3 for feed, number in (await _last_sequences(scene)).items()):
                await scene._soon()
        gone = await _published(scene)
        await _restore(scene, backup)
        for feed in _IDS:
            await scene.announced("poller.feed.rolledback.v1", feed)
        await scene.more("earliest", 10)
        verdicts = await scene.caught_up()  # also judges the streams: lost, gaps, doubles
        assert not verdicts["earliest"].lost, verdicts
        again = await _published(scene)
        same = gone.keys() & again.keys()
        assert {key: gone[key] for key in same} == {key: again[key] for key in same}
        assert len({gone[key] for key in same}) == len(same) > 20
        assert not _told(running, "feed lost"), running


async def test_another_installations_data(tmp_path: Path, store: str) -> None:
    """State of another generation is kept, and the differences are published as a baseline, not as changes."""
    async with reading(tmp_path, store, resources=["contractTypes"]) as scene:
        client, keys = scene.played.client, scene.feeds[0].store.keys
        await scene.good_rounds()
        names = [getattr(keys, name) for name in FEED_KEYS if name != "lease"]
        dumped = {name: await client.dump(name) for name in names}
        scene.source.change(200)
        await scene.good_rounds()
        await flushed(client)
        for name, value in dumped.items():
            if value is not None:
                await client.restore(name, 0, value)
        await client.hset(keys.state, "generation", "foreign")
        count = len(await scene.played.events("contractTypes"))
        await scene.good_rounds()
        (first, *_) = (result for result in scene.results if result.loss is not None)
        assert first.loss is not None
        assert (first.loss.kind, first.mode.value) == ("replaced", "baseline")
        fresh = [read(event) for event in (await scene.played.events("contractTypes"))[count:]]
        assert {event["data"]["cause"] for event in fresh} == {"baseline"}
        scene.source.change(20)
        await scene.good_rounds()
        verdict = await scene.verdict()
        assert verdict.clean, verdict
        assert scene.results[-1].mode.value == "delta"


async def _no_storm(scene: Subscribed, before: dict[str, int]) -> None:
    """The loss is announced once for each feed; no sink gets the baseline, and each sink gets all later changes."""
    for feed in _IDS:
        await scene.announced(_LOST, feed)
    await scene.more("now", 10)
    upto = await scene.played.version()
    owed: dict[str, Any] = {}
    async with patience("all later changes"):
        while True:
            streams = {feed: await _since_the_loss(scene, feed) for feed in FEEDS}
            verdict = judge(
                [line for line in await scene.played.log() if line["resource"] in FEEDS], streams, upto=upto
            )
            events = [read(event) for found in streams.values() for event in found]
            owed = {event["id"]: event["data"]["cause"] for event in events}
            changes = {id_ for id_, cause in owed.items() if cause != "baseline"}
            if not verdict.lost and all(changes <= scene.taken(wish.sink) for wish in scene.wishes):
                break
            await scene._soon()
    assert not [*verdict.doubled, *verdict.misclassified], verdict
    assert changes
    baseline = owed.keys() - changes
    assert len(baseline) >= 10
    for wish in scene.wishes:
        assert not baseline & scene.taken(wish.sink), wish.sink
    for feed in FEEDS:
        numbers = [int(read(event)["sequence"]) for event in await scene.played.events(feed)]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert numbers[0] > before[feed] or not before[feed]
    assert len(await scene.announcements(_LOST)) == len(FEEDS)


async def _since_the_loss(scene: Subscribed, feed: str) -> list[bytes]:
    """The events of the new generation; only the private field ``anew_at`` says where it begins."""
    anew = await scene.played.client.hget(f"poller:{{acme/{feed}}}:state", "anew_at")
    assert anew is not None
    return [event for entry, event in await scene.entries(feed) if EntryId.parse(entry)[0] >= int(anew)]


async def _last_sequences(scene: Subscribed) -> dict[str, int]:
    return {feed: int(read((await scene.played.events(feed))[-1])["sequence"]) for feed in FEEDS}


async def _published(scene: Subscribed) -> dict[tuple[str, int, str], str]:
    """The ids of all events, by record, revision and content."""
    events = [read(event) for feed in FEEDS for event in await scene.played.events(feed)]
    return {
        (event["subject"], event["data"]["revision"], json.dumps(event["data"].get("record"))): event["id"]
        for event in events
    }


async def _backup(scene: Subscribed) -> dict[bytes, bytes]:
    """All keys except the leases, at one instant."""
    client = scene.played.client
    names = [key async for key in client.scan_iter() if not key.endswith(b":lease")]
    async with client.pipeline(transaction=True) as asking:
        for name in names:
            asking.dump(name)
        return dict(zip(names, cast("list[bytes]", await asking.execute()), strict=True))


async def _restore(scene: Subscribed, backup: dict[bytes, bytes]) -> None:
    async with scene.played.client.pipeline(transaction=True) as asking:
        asking.flushall()
        for name, value in backup.items():
            asking.restore(name.decode(), 0, value)
        await asking.execute()


def _told(said: Daemon, event: str) -> list[Line]:
    return [line for line in said.lines if line.get("event") == event]
