"""The registry of subscriptions: what each change writes."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from poller.clock import milliseconds_of, moment_of
from poller.errors import ConfigurationError, StoreError, StoreRefused, SubscriptionTaken, SubscriptionUnknown
from poller.redis.client import commands
from poller.store import subscriptions as registering
from poller.store.consumer_state import forget
from poller.store.keys import ConsumerKeys, FeedKeys, SubscriptionKeys, group_of
from poller.store.members import ListedSubscriptions
from poller.store.registry import Registry
from poller.store.stream import before_moment
from poller.store.subscriptions import (
    PARTS,
    UNREADABLE,
    FilePauses,
    OlderSubscriptions,
    Paused,
    Pauser,
    Registered,
    RestoredPauses,
    SinkPauses,
    SubscriptionOutline,
    Subscriptions,
    Write,
    file_differences,
    health_field,
    older_subscriptions,
    outline_of,
    plan_file_pauses,
    since_field,
    subscriptions_of,
)
from tests.harness.waiting import until
from tests.stores import all_keys

NOW = datetime(2026, 3, 2, 8, 15, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
TOKEN = b'{"a":"t0ken"}'
ALL_FEEDS = ("s/one", "s/two", "s/three", "s/four")
ONE, OTHER = b'{"id":"a","rate":1.0}', b'{"id":"a","rate":1}'


def applied(kept: Subscriptions, writes: list[Write]) -> Subscriptions:
    """The subscriptions after these writes, encoded and decoded as in the store."""
    encode = msgspec.json.encode
    hashes: list[dict[bytes, bytes]] = [
        {name.encode(): encode(one) for name, one in kept.registered.items()},
        {name.encode(): encode(one) for name, one in kept.secrets.items()},
        {name.encode(): one for name, one in kept.credentials.items()},
        {name.encode(): encode(one) for name, one in kept.paused.items()},
        {health_field(name, feed).encode(): one for name, feeds in kept.health.items() for feed, one in feeds.items()},
        {name.encode(): encode(milliseconds_of(one)) for name, one in kept.until.items()},
        {name.encode(): one for name, one in kept.handshakes.items()},
    ]
    for part, name, value in writes:
        where = hashes[PARTS.index(part)]
        where.pop(name.encode(), None)
        if value is not None:
            where[name.encode()] = value
    return subscriptions_of(b"%d" % (kept.version + 1), hashes)


def filed(*names: str, settings: bytes = ONE) -> Subscriptions:
    """Subscriptions that the configuration file lists."""
    return applied(Subscriptions(), registering.plan_file(Subscriptions(), dict.fromkeys(names, settings), NOW))


def test_the_file_is_taken_over_once() -> None:
    """Law: new subscriptions are added, changed ones keep their ``since``, and the same file again writes nothing."""
    kept = filed("a", "b")
    assert registering.plan_file(kept, {"b": ONE, "a": ONE}, LATER) == []
    writes = registering.plan_file(kept, {"a": OTHER, "b": ONE, "c": ONE}, LATER)
    assert [(part, name) for part, name, _ in writes] == [("registry", "c"), ("registry", "a")]
    after = applied(kept, writes)
    assert {name: one.since for name, one in after.registered.items()} == {"a": NOW, "b": NOW, "c": LATER}
    assert bytes(after.registered["a"].settings) == OTHER
    assert {one.origin for one in after.registered.values()} == {"file"}


def test_since_when_a_feed_is_wanted() -> None:
    """Law: ``asked`` is the store's time of the request; other feeds renew it, other settings do not."""
    first = registering.plan_file(Subscriptions(at=5), dict.fromkeys(("a", "b", "c"), ONE), NOW)
    kept = applied(Subscriptions(), first)
    assert {one.asked for one in kept.registered.values()} == {5}
    other, feeds = b'{"sink":"https://other"}', b'{"feeds":["acme/one"]}'
    changed = registering.plan_file(msgspec.structs.replace(kept, at=9), {"a": other, "b": feeds, "c": ONE}, LATER)
    kept = applied(kept, changed + registering.plan_addition(msgspec.structs.replace(kept, at=11), "d", ONE, (), NOW))
    assert {name: one.asked for name, one in kept.registered.items()} == {"a": 5, "b": 9, "c": 5, "d": 11}
    lost = applied(Subscriptions(), registering.plan_file(Subscriptions(at=20), {"a": ONE, "new": ONE}, LATER, kept))
    assert {name: one.asked for name, one in lost.registered.items()} == {"a": 5, "new": 20}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (["s/one"], ["s/one", "s/two"], {"s/one": 5, "s/two": 9}),
        (["s/one", "s/two"], ["s/two", "s/one"], {"s/one": 5, "s/two": 5}),
        (None, ["s/one"], {"s/one": 5}),
        (["s/one"], None, {"s/one": 5, "s/two": 9}),
    ],
    ids=["one more", "another order", "one of all", "all"],
)
def test_a_feed_that_stays_is_wanted_since_it_was(
    before: list[str] | None, after: list[str] | None, expected: dict[str, int]
) -> None:
    """Law: changed feeds renew ``asked`` for new feeds only: what waits at the others stays new to the subscription."""
    settings = [msgspec.json.encode({"feeds": feeds}) for feeds in (before, after, before)]
    kept = applied(Subscriptions(), registering.plan_addition(Subscriptions(at=5), "a", settings[0], (), NOW))
    kept = applied(kept, registering.plan_change(msgspec.structs.replace(kept, at=9), "a", settings[1]))
    assert {feed: kept.registered["a"].asked_for(feed) for feed in expected} == expected
    kept = applied(kept, registering.plan_change(msgspec.structs.replace(kept, at=12), "a", settings[2]))
    assert {kept.registered["a"].asked_for(feed) for feed in before or ("s/one",)} == {5}
    assert kept.registered["a"].asked == 12


@pytest.mark.parametrize("by", ["file", "request"])
@pytest.mark.parametrize(
    ("feeds", "expected"),
    [
        ([["s/one", "s/two"], ["s/one"], ["s/one", "s/two"]], {"s/one": 1, "s/two": 1, "s/three": 3}),
        ([["s/one"], ["s/one", "s/two"], ["s/one"], ["s/three"], ["s/two"]], {"s/two": 2}),
        ([["s/one"], ["s/two"], None], {"s/one": 1, "s/two": 2, "s/three": 3}),
        ([None, ["s/one"], None], {"s/one": 1, "s/two": 1}),
        ([None, ["s/one"], ["s/one", "s/two"], ["s/three"], None], {"s/one": 1, "s/two": 1, "s/three": 1, "s/four": 1}),
        ([["s/one"], None, ["s/two"], ["s/one", "s/three"]], {"s/one": 1, "s/three": 2}),
        ([None, ["s/one"]], {"s/one": 1, "s/two": 1}),
    ],
    ids=["one of two", "after other changes", "all", "one of all", "others of all", "all for a while", "not yet"],
)
def test_a_feed_that_is_listed_again_is_wanted_since_it_was(
    feeds: list[list[str] | None], expected: dict[str, int], by: str
) -> None:
    """Law: what waited at a feed when it was unlisted is still new to the subscription when it is listed again."""
    kept = Subscriptions()
    for at, names in enumerate(feeds, 1):
        now, settings = msgspec.structs.replace(kept, at=at), msgspec.json.encode({"feeds": names})
        ends = {"": "0-0"} | {f"s/{feed}": f"{at}-7" for feed in ("one", "two", "three", "four")}
        if by == "file":
            kept = applied(kept, registering.plan_file(now, {"a": settings}, NOW, ends=ends))
        elif at == 1:
            kept = applied(kept, registering.plan_addition(now, "a", settings, (), NOW, ends=ends))
        else:
            kept = applied(kept, registering.plan_change(now, "a", settings, ends=ends))
    one = kept.registered["a"]
    assert {feed: one.asked_for(feed) for feed in expected} == expected
    wanted = {feed: f"{at}-7" for feed, at in expected.items() if one.outline.wants(feed)}
    assert {feed: one.new_after(feed) for feed in wanted} == wanted


@pytest.mark.parametrize(
    ("feeds", "expected"),
    [
        ([["s/one", "s/two"], ["s/one"]], {"s/two": 2}),
        ([["s/one", "s/two"], ["s/one"], ["s/one", "s/three"]], {"s/two": 2}),
        ([["s/one", "s/two"], ["s/one"], ["s/two"], ["s/one"]], {"s/two": 4}),
        ([["s/one"], None], {}),
        ([["s/one"], ["s/two"], None, ["s/two"]], {"s/one": 4, "s/three": 4, "s/four": 4}),
        ([None, ["s/one"]], {"s/two": 2, "s/three": 2, "s/four": 2}),
    ],
    ids=["one of two", "others since", "again", "all", "all for a while", "one of all"],
)
@pytest.mark.parametrize("version", ["this", "before"])
def test_which_feeds_a_subscription_has_left(
    feeds: list[list[str] | None], expected: dict[str, int], version: str
) -> None:
    """Law: a feed was left when it was listed and is not, since the last change that took it from the list.

    Of what an earlier version has written, the last change counts, and all feeds were listed where it wanted all.
    """
    kept, changes = Subscriptions(), len(feeds)
    for at, names in enumerate(feeds, 1):
        now, settings = msgspec.structs.replace(kept, at=at), msgspec.json.encode({"feeds": names})
        ends = {"": "0-0"} | {f"s/{feed}": f"{at}-7" for feed in ("one", "two", "three", "four")}
        kept = applied(kept, registering.plan_file(now, {"a": settings}, NOW, ends=ends))
    one = kept.registered["a"]
    found = {feed: one.unlisted_at(feed) for feed in ALL_FEEDS if one.has_left(feed)}
    assert found == expected
    if version == "before":
        old = msgspec.json.decode(msgspec.json.encode(one))
        old.pop("unlisted")
        one = msgspec.json.decode(msgspec.json.encode(old), type=Registered)
        assert {feed for feed in ALL_FEEDS if one.has_left(feed)} >= set(expected)
        assert {one.unlisted_at(feed) for feed in expected} <= {changes}


def test_where_one_begins_that_an_earlier_version_has_written() -> None:
    """Law: where no last entry is known the moment counts, also once other feeds are listed; an unknown feed is new."""
    old = b'{"origin":"run","settings":{"feeds":["s/one"]},"since":"2026-03-02T08:15:00Z","asked":5}'
    kept = subscriptions_of(b"1", [{b"a": old}, *({} for _ in PARTS[1:])])
    assert kept.registered["a"].new_after("s/one") == before_moment(5)
    ends = {"": "0-0", "s/one": "9-7", "s/two": "9-8", "s/unusable": ""}
    for feeds in (["s/one", "s/two", "s/unusable"], None):
        now, settings = msgspec.structs.replace(kept, at=9), msgspec.json.encode({"feeds": feeds})
        kept = applied(kept, registering.plan_change(now, "a", settings, ends=ends))
    one = kept.registered["a"]
    found = [one.new_after(feed) for feed in ("s/one", "s/two", "s/unusable", "s/unknown")]
    assert found == [before_moment(5), "9-8", before_moment(9), "0-0"]


@pytest.mark.parametrize("by", ["file", "request"])
def test_what_a_sink_said_ends_with_it(by: str) -> None:
    """Law: a pause by Retry-After and a granted handshake end when any process changes the sink."""
    first, same, other = (b'{"sink":"https://%s.example","rate":%d}' % one for one in ((b"x", 1), (b"x", 2), (b"y", 1)))
    soon = [(since_field("a"), milliseconds_of(NOW)), ("a", milliseconds_of(LATER))]
    said: list[Write] = [("handshakes", "a", b"granted"), *(("until", name, b"%d" % at) for name, at in soon)]
    kept = msgspec.structs.replace(applied(filed("a", settings=first), said), at=5)

    def after(settings: bytes) -> Subscriptions:
        if by == "file":
            return applied(kept, registering.plan_file(kept, {"a": settings}, LATER))
        return applied(kept, registering.plan_change(kept, "a", settings))

    assert (after(same).handshakes, after(same).until) == ({"a": b"granted"}, {"a": LATER})
    assert (after(other).handshakes, after(other).pauses) == ({}, SinkPauses(resumed={"a": 5}))


def test_a_permission_ends_when_it_is_not_needed_any_more() -> None:
    """Law: a sink is asked again if ``validate`` was unset meanwhile, so that it can permit another rate."""
    asked, unasked = (b'{"sink":"https://x.example","validate":%s}' % one for one in (b"true", b"false"))
    kept = applied(filed("a", settings=asked), [("handshakes", "a", b"granted"), ("until", "a", b"1")])
    assert applied(kept, registering.plan_file(kept, {"a": asked}, LATER)).handshakes == {"a": b"granted"}
    after = applied(kept, registering.plan_file(kept, {"a": unasked}, LATER))
    assert (after.handshakes, after.until) == ({}, kept.until)


async def test_a_mark_of_the_sink_before_is_not_written(store_client: Redis) -> None:
    """Law: a sink's permission is stored only while it is the subscription's sink."""
    registry = Registry(store_client, KEYS)
    await registry.add("a", b'{"sink":"https://y.example/\xc3\xbc"}', (), NOW)
    assert not await registry.note_handshake("a", b"granted", sink="https://x.example")
    assert await registry.handshake("a") is None
    assert await registry.note_handshake("a", b"granted", sink="https://y.example/\u00fc")
    assert await registry.handshake("a") == b"granted"


async def test_what_the_sink_before_says_late_pauses_nothing(store_client: Redis) -> None:
    """Law: a late Retry-After or 410 of the former sink, or of a removed subscription, writes nothing."""
    registry = Registry(store_client, KEYS)
    await registry.add("a", b'{"sink":"https://y.example"}', (), NOW)
    version, span = await registry.version(), timedelta(hours=1)
    later = moment_of((await registry.all()).at) + span
    gone = Paused("sink", "status 410", NOW)
    assert not await registry.note_pause("a", span, sink="https://x.example")
    assert not await registry.rest("a", gone, sink="https://x.example", renewed=lambda _: b"bad")
    assert not await registry.rest("b", gone, sink="https://y.example")
    kept = await registry.all()
    assert (kept.version, kept.until, kept.paused, kept.health) == (version, {}, {}, {})
    assert await registry.note_pause("a", span, sink="https://y.example")
    assert await registry.rest("a", gone, sink="https://y.example", renewed=lambda _: b"bad")
    assert not await registry.rest("a", Paused("failures", "5 d", NOW), sink="https://y.example")
    kept = await registry.all()
    assert abs(kept.until["a"] - later) < _SOON
    assert (list(kept.until), kept.paused, kept.health) == (["a"], {"a": gone}, {"a": {"": b"bad"}})


def listing(*names: str) -> ListedSubscriptions:
    """The live processes list these subscriptions, and all of them say what they list."""
    return ListedSubscriptions(frozenset(names), is_complete=True)


def test_what_leaves_the_files_rests_until_it_returns() -> None:
    """Law: a subscription that leaves the files is paused, reported once, and resumed when it returns."""
    writes, told = plan_file_pauses(filed("a", "b"), listing("b"), NOW)
    assert told == FilePauses(paused=("a",))
    gone = applied(filed("a", "b"), writes)
    assert "a" in gone.registered
    assert gone.paused["a"].by == "removed"
    assert plan_file_pauses(gone, listing("b"), LATER) == ([], FilePauses())
    changed = applied(gone, registering.plan_file(gone, {"a": OTHER, "b": ONE}, LATER))
    assert changed.paused == gone.paused
    writes, told = plan_file_pauses(changed, listing("a", "b"), LATER)
    assert told == FilePauses(resumed=("a",))
    back = applied(changed, writes)
    assert (back.paused, bytes(back.registered["a"].settings)) == ({}, OTHER)


def test_an_operators_pause_takes_the_place_of_one_that_ends_by_itself() -> None:
    """Law: a subscription that an operator paused is not resumed when a file lists it again."""
    gone = applied(filed("a"), plan_file_pauses(filed("a"), listing(), NOW)[0])
    rests = applied(gone, registering.plan_pause(gone, "a", Paused("operator", "so", LATER))[0])
    assert plan_file_pauses(rests, listing("a"), LATER) == ([], FilePauses())
    assert rests.paused["a"].by == "operator"


def test_one_of_the_file_and_one_of_run_time_cannot_be_the_same() -> None:
    """Law: one id in the file and at run time is an error, and nothing of the file is written."""
    kept = applied(Subscriptions(), registering.plan_addition(Subscriptions(), "a", ONE, (), NOW))
    with pytest.raises(ConfigurationError, match=r'"a" is in the configuration file.*added at run time.*remove a'):
        registering.plan_file(kept, {"a": ONE, "b": ONE}, NOW)
    assert [name for _, name, _ in registering.plan_file(kept, {"b": ONE}, NOW)] == ["b"]
    with pytest.raises(SubscriptionTaken):
        registering.plan_addition(filed("a"), "a", ONE, (), NOW)


def test_removed_is_gone_altogether() -> None:
    """Law: no part keeps anything of a removed subscription."""
    added = registering.plan_addition(Subscriptions(), "a", ONE, ["whsec_x"], NOW, credential=TOKEN)
    kept = applied(Subscriptions(), added)
    parts: list[Write] = [
        ("health", "a", b"1"),
        ("health", "a s/f", b"2"),
        ("health", "a s/g", b"3"),
        ("until", "a", b"5"),
        ("handshakes", "a", b"1"),
    ]
    kept = applied(kept, [*parts, *registering.plan_pause(kept, "a", Paused("sink", "410", NOW))[0]])
    assert all(getattr(kept, part if part != "registry" else "registered") for part in PARTS)
    assert applied(kept, registering.plan_removal(kept, "a")) == Subscriptions(version=kept.version + 1)


def test_a_credential_changes_as_it_is_asked_for() -> None:
    """Law: a credential stays unless the change decides otherwise, on the present settings and credential."""
    kept = applied(Subscriptions(), registering.plan_addition(Subscriptions(), "a", ONE, (), NOW, credential=TOKEN))
    assert [part for part, *_ in registering.plan_change(kept, "a", OTHER)] == ["registry"]
    assert registering.plan_change(kept, "a", ONE, lambda *was: TOKEN if was == (ONE, TOKEN) else b"other") == []
    assert registering.plan_change(kept, "a", ONE, lambda _, __: b"new") == [("credentials", "a", b"new")]
    gone = registering.plan_change(kept, "a", OTHER, lambda _, __: None)
    assert gone[1:] == [("credentials", "a", None)]
    assert applied(kept, gone).credentials == {}


def test_a_new_one_has_no_credential_of_another() -> None:
    """Law: a new subscription does not get the credential that the store still holds for a lost one of its id."""
    left = Subscriptions(credentials={"a": TOKEN, "b": TOKEN, "c": TOKEN})
    left = applied(left, registering.plan_file(left, {"a": ONE}, NOW))
    left = applied(left, registering.plan_addition(left, "b", ONE, (), NOW))
    assert left.credentials == {"c": TOKEN}


def test_resumed_starts_again() -> None:
    """Law: resuming ends the pause, renews the health, and returns the pause."""
    pause = Paused("failures", "5 d", NOW)
    kept = applied(
        filed("a"),
        [("health", "a", b"bad"), ("health", "a s/f", b"bad"), *registering.plan_pause(filed("a"), "a", pause)[0]],
    )
    writes, before = registering.plan_resumption(kept, "a", lambda _: b"good")
    after = applied(kept, writes)
    assert (before, after.paused, after.health) == (pause, {}, {"a": {"": b"good", "s/f": b"good"}})
    writes, before = registering.plan_resumption(msgspec.structs.replace(after, at=5), "a", lambda health: health)
    assert (before, applied(after, writes).pauses.resumed) == (None, {"a": 5})  # for one whose pause is not stored
    failing = msgspec.structs.replace(applied(after, [("health", "a s/f", b"bad")]), at=7)
    writes, before = registering.plan_resumption(failing, "a", lambda _: b"good")
    assert (before, applied(failing, writes).pauses.resumed) == (None, {"a": 7})  # for the process that delivers it


@pytest.mark.parametrize("change", ["plan_removal", "plan_pause", "plan_resumption"])
def test_what_is_not_there_is_told(change: str) -> None:
    """Law: an unknown id is an error that names the known ones."""
    arguments: dict[str, Any] = {"plan_pause": Paused("operator", "", NOW), "plan_resumption": bytes}
    with pytest.raises(SubscriptionUnknown, match='"x"; there are a, b'):
        getattr(registering, change)(filed("b", "a"), "x", *filter(None, [arguments.get(change)]))


def test_no_secret_is_shown() -> None:
    """Law: neither the repr nor the words on an unreadable value show a secret."""
    added = registering.plan_addition(Subscriptions(), "a", ONE, ["whsec_x"], NOW, credential=TOKEN)
    kept = applied(Subscriptions(), added)
    assert (kept.secrets, kept.credentials) == ({"a": ("whsec_x",)}, {"a": TOKEN})
    assert "whsec" not in repr(kept)
    assert "t0ken" not in repr(kept)
    unusable = subscriptions_of(b"1", [{}, {b"a": b"whsec_x"}, {}, {}, {}, {}, {}]).unusable
    assert list(unusable) == ["a"]
    assert "whsec" not in str(unusable)


# The registry of subscriptions: one suite over the simulated store, Valkey and Redis.

KEYS = SubscriptionKeys.of("poller")
SETTINGS = b'{"id":"a","sink":"https://sink.example.org","big":123456789012345678901,"none":[]}'
_SOON = timedelta(seconds=20)  # in which a test reads what it has written
PAUSE = Paused("operator", "so", NOW)


async def test_what_is_written_is_read(store_client: Redis) -> None:
    """Law: each part is read as it was written, settings byte for byte; notes do not move the version."""
    registry = Registry(store_client, KEYS)
    assert await registry.version() == 0
    await registry.add("a", SETTINGS, ["whsec_1", "whsec_2"], NOW)
    await registry.pause("a", PAUSE)
    version = await registry.version()
    assert await registry.note_health("a", "s/f", b"well")
    assert await registry.note_handshake("a", b"granted")
    assert await registry.note_pause("a", timedelta())
    kept = await registry.all()
    one = kept.registered["a"]
    assert (one.origin, bytes(one.settings), one.since) == ("run", SETTINGS, NOW)
    assert (kept.secrets, kept.paused) == ({"a": ("whsec_1", "whsec_2")}, {"a": PAUSE})
    assert (kept.health, kept.handshakes, list(kept.until)) == ({"a": {"s/f": b"well"}}, {"a": b"granted"}, ["a"])
    assert kept.version == version == await registry.version()


async def test_a_subscription_is_current_until_it_is_paused_changed_or_replaced(store_client: Redis) -> None:
    """Law: a new subscription with the same id and settings is not the former one."""
    registry = Registry(store_client, SubscriptionKeys.of("poller"))
    assert not await registry.is_current("a", SETTINGS, NOW)
    await registry.add("a", SETTINGS, [], NOW)
    assert await registry.is_current("a", SETTINGS, NOW)
    assert not await registry.is_current("a", b"{}", NOW)
    await registry.pause("a", PAUSE)
    assert not await registry.is_current("a", SETTINGS, NOW)
    await registry.remove("a")
    await registry.add("a", SETTINGS, [], NOW + timedelta(milliseconds=1))
    assert not await registry.is_current("a", SETTINGS, NOW)


@pytest.mark.parametrize("name", ["version", "parked"])
async def test_a_number_that_is_none_is_an_error_of_the_store(store_client: Redis, name: str) -> None:
    """Law: an unreadable number is a StoreError that names the key; reads work again after its repair."""
    registry, key = Registry(store_client, SubscriptionKeys.of("poller")), f"poller:{{subscriptions}}:{name}"
    await registry.add("a", SETTINGS, [], NOW)
    await store_client.set(key, "many")
    reads = [registry.marks, *([registry.version, registry.all] if name == "version" else [])]
    for read in reads:
        with pytest.raises(StoreError, match=re.escape(key)):
            await read()
    await store_client.delete(key)
    assert (await registry.marks()).registered == 1


async def test_each_change_moves_the_version(store_client: Redis) -> None:
    """Law: each change of registry, secrets or pauses moves the version, and nothing else does."""
    registry = Registry(store_client, KEYS)
    versions = [await registry.version()]
    file = [("f", SETTINGS)]

    async def nothing() -> ListedSubscriptions:
        return listing()

    async def all_of_it() -> ListedSubscriptions:
        return listing("f")

    changes = (
        lambda: registry.add("a", SETTINGS, ["whsec_1"], NOW),
        lambda: registry.sync(file, NOW),
        lambda: registry.pause("a", PAUSE),
        lambda: registry.resume("a"),
        lambda: registry.reconcile(nothing, NOW),
        lambda: registry.reconcile(all_of_it, NOW),
        lambda: registry.remove("a"),
    )
    for change in changes:
        await change()
        versions.append(await registry.version())
    assert versions == sorted(set(versions))
    await registry.sync(file, NOW)
    assert await registry.version() == versions[-1]
    assert await registry.resume("f") is None  # processes may remember a pause that is not stored
    assert await registry.version() > versions[-1]


async def test_a_later_moment_stays(store_client: Redis) -> None:
    """Law: a pause of a sink is never shortened, in whatever order processes store it."""
    registry = Registry(store_client, KEYS)
    await registry.add("a", SETTINGS, (), NOW)
    at = moment_of((await registry.all()).at)
    for span in (timedelta(), timedelta(hours=23), timedelta(hours=9)):
        await registry.note_pause("a", span)
    until = (await registry.all()).until["a"]
    assert abs(until - at - timedelta(hours=23)) < _SOON
    assert (await registry.pauses()).until == {"a": until}


@pytest.mark.parametrize("days", [2, 30, 400_000])
async def test_a_pause_that_a_wrong_clock_has_written_is_none(store_client: Redis, days: int) -> None:
    """Law: a pause of more than a day comes from a wrong clock; it has no effect and is replaced."""
    registry = Registry(store_client, KEYS)
    await registry.add("a", SETTINGS, (), NOW)
    at = (await registry.all()).at
    await store_client.hset(KEYS.until, "a", at + days * 86_400_000)
    assert (await registry.all()).until == (await registry.pauses()).until == {}
    await registry.note_pause("a", timedelta(minutes=1))
    pauses = await registry.pauses()
    assert pauses.until["a"] - pauses.since["a"] == timedelta(minutes=1)
    assert abs(pauses.since["a"] - moment_of(at)) < _SOON


async def test_a_pause_is_noted_for_no_more_than_a_day(store_client: Redis) -> None:
    """Law: a pause ends within a day by the store's clock, however long the sink wants it."""
    registry = Registry(store_client, KEYS)
    await registry.add("a", SETTINGS, (), NOW)
    at = moment_of((await registry.all()).at)
    await registry.note_pause("a", timedelta(days=30))
    kept = (await registry.pauses()).until["a"]
    assert timedelta(hours=24) <= kept - at < timedelta(hours=24, minutes=1)


async def test_a_pause_of_a_store_whose_clock_was_set_back_is_over(store_client: Redis) -> None:
    """Law: a pause that began in the future, before the clock was set back, is over."""
    registry = Registry(store_client, KEYS)
    await registry.add("a", SETTINGS, (), NOW)
    at = (await registry.all()).at
    await store_client.hset(KEYS.until, mapping={"a": at + 60_000, "a since": at + 57_000})
    assert (await registry.pauses()).until == {}
    await registry.note_pause("a", timedelta(seconds=5))
    pauses = await registry.pauses()
    assert pauses.until["a"] - pauses.since["a"] == timedelta(seconds=5)


async def test_resuming_ends_a_pause_of_the_sink(store_client: Redis) -> None:
    """Law: resuming ends a pause of the sink for all processes; removing leaves nothing of it."""
    registry = Registry(store_client, KEYS)
    await registry.add("a", SETTINGS, (), NOW)
    assert await registry.resume("a") is None
    at = moment_of((await registry.all()).at)
    await registry.note_pause("a", timedelta(hours=1))
    before = await registry.resume("a")
    assert before is not None
    assert before.by == "sink"
    assert abs(before.at - at) < timedelta(seconds=20)
    pauses = await registry.pauses()
    assert pauses.until == {}
    assert abs(moment_of(pauses.resumed["a"]) - at) < timedelta(seconds=20)
    await registry.note_pause("a", timedelta(hours=1))
    await registry.remove("a")
    assert await all_keys(store_client) == {KEYS.version.encode(), KEYS.changes.encode()}


async def test_a_late_mark_brings_nothing_back(store_client: Redis) -> None:
    """Law: nothing is noted for a subscription that does not exist, and a removed one leaves only the version."""
    registry = Registry(store_client, KEYS)
    await registry.add("a", SETTINGS, ["whsec_1"], NOW)
    await registry.note_health("a", "s/f", b"well")
    await registry.pause("a", PAUSE)
    await registry.remove("a")
    assert not await registry.note_health("a", "s/f", b"well")
    assert not await registry.note_handshake("a", b"granted")
    assert not await registry.note_pause("a", timedelta())
    assert await all_keys(store_client) == {KEYS.version.encode(), KEYS.changes.encode()}
    with pytest.raises(SubscriptionUnknown):
        await registry.remove("a")


async def test_processes_change_it_at_the_same_time(any_store: str) -> None:
    """Law: of simultaneous changes each is made once: none overwrites another, one of equal ids wins."""
    clients = [commands(any_store) for _ in range(8)]
    try:
        registries = [Registry(client, KEYS) for client in clients]
        adding = [registry.add("same", SETTINGS, [f"whsec_{at}"], NOW) for at, registry in enumerate(registries)]
        adding += [registry.add(f"own-{at}", SETTINGS, (), NOW) for at, registry in enumerate(registries)]
        ended = await asyncio.gather(*adding, return_exceptions=True)
        assert [type(one) for one in ended if one] == [SubscriptionTaken] * 7
        (winner,) = [at for at, one in enumerate(ended[:8]) if one is None]
        kept = await registries[0].all()
        assert set(kept.registered) == {"same", *(f"own-{at}" for at in range(8))}
        assert kept.secrets == {"same": (f"whsec_{winner}",)}
        assert kept.version == 9

        pausing = [registry.pause(f"own-{at}", PAUSE) for at, registry in enumerate(registries)]
        syncing = [registry.sync([("f", SETTINGS)], NOW) for registry in registries]
        await asyncio.gather(*pausing, *syncing)
        kept = await registries[0].all()
        assert (kept.version, "f" in kept.registered) == (9 + len(pausing) + 1, True)
        assert set(kept.paused) == {f"own-{at}" for at in range(8)}
    finally:
        for client in clients:
            await client.aclose()


async def test_a_change_is_whole_or_not_at_all(store_client: Redis) -> None:
    """Law: if one key has another type, nothing is written; a refused file leaves all as it was."""
    registry = Registry(store_client, KEYS)
    await registry.add("a", SETTINGS, (), NOW)
    with pytest.raises(ConfigurationError):
        await registry.sync([("new", SETTINGS), ("a", SETTINGS)], NOW)
    assert set((await registry.all()).registered) == {"a"}
    kept = await registry.all()
    await store_client.set(KEYS.secrets, "x")
    with pytest.raises(StoreRefused):
        await registry._write(kept, [("registry", "b", SETTINGS), ("secrets", "b", b"[]")])
    assert await store_client.hlen(KEYS.registry) == 1
    assert await registry.version() == 1


async def test_what_cannot_be_read_stops_its_own_subscription_alone(store_client: Redis) -> None:
    """Law: an unreadable field is named without its content; others are read, and the subscription can be mended."""
    registry = Registry(store_client, KEYS)
    for name in ("a", "b", "well"):
        await registry.add(name, SETTINGS, ("whsec_x",), NOW)
    for key, name in ((KEYS.registry, "filed"), (KEYS.secrets, "a"), (KEYS.paused, "b"), (KEYS.until, "well")):
        await store_client.hset(key, name, b'"hush"')
    await store_client.hset(KEYS.until, mapping={since_field("well"): b"9" * 30, b"\xff": b"x"})
    kept = await registry.all()
    assert set(kept.registered) == {"a", "b", "well", "filed"}
    assert kept.registered["filed"].outline is UNREADABLE
    assert {name: "cannot be read" in text for name, text in kept.unusable.items()} == {"a": True, "filed": True}
    assert (kept.paused["b"].by, kept.paused["b"].at) == ("operator", NOW)
    assert "hush" not in f"{kept.unusable} {kept.paused}"
    assert (kept.secrets, kept.until) == ({"b": ("whsec_x",), "well": ("whsec_x",)}, {})
    assert (await registry.pauses()).until == {}
    assert await registry.resume("b")
    await registry.sync([("filed", SETTINGS)], NOW)
    await registry.remove("a")
    assert await registry.note_pause("well", timedelta(minutes=1))
    kept = await registry.all()
    assert (kept.unusable, kept.paused, list(kept.until)) == ({}, {}, ["well"])
    assert kept.registered["filed"].origin == "file"


@pytest.mark.parametrize("part", ["paused", "secrets", "credentials"])
async def test_a_lost_part_is_brought_back_unless_something_has_changed(store_client: Redis, part: str) -> None:
    """Law: fewer fields under the same version are a loss, which is undone; a change since then stays as it is."""
    registry = Registry(store_client, KEYS)
    for name in ("a", "b"):
        await registry.add(name, SETTINGS, ("whsec_x",), NOW, credential=b"token")
        await registry.pause(name, Paused("sink", "status 410", NOW))
    before = await registry.all()
    assert not (await registry.marks()).is_loss(before)
    await store_client.hdel(getattr(KEYS, part), "a")
    assert (await registry.marks()).is_loss(before)
    await registry.restore(before)
    after = await registry.all()
    assert (after.paused, after.secrets, after.credentials) == (before.paused, before.secrets, before.credentials)
    await registry.resume("a")
    assert not (await registry.marks()).is_loss(after)
    await registry.restore(after)
    assert set((await registry.all()).paused) == {"b"}


async def test_a_pause_that_a_failover_has_lost_is_brought_back(store_client: Redis) -> None:
    """An older registry, as after a failover, gets the pauses that were noted since, but not those of removed ones."""
    registry = Registry(store_client, KEYS)
    for name in ("active", "paused", "again"):
        await registry.add(name, SETTINGS, (), NOW)
    older = {key: await store_client.dump(key) or b"" for key in (KEYS.version, KEYS.registry)}
    for name in ("active", "paused", "again"):
        await registry.pause(name, Paused("operator", "maintenance", NOW))
    await registry.resume("active")
    before = await registry.all()
    await store_client.delete(KEYS.paused)
    for key, value in older.items():
        await store_client.restore(key, 0, value, replace=True)
    await registry.remove("again")
    await registry.add("again", SETTINGS, (), NOW + timedelta(seconds=1))
    assert (await registry.all()).version < before.version
    assert (await registry.marks()).is_loss(before)
    await registry.restore(before)
    kept = await registry.all()
    assert (kept.paused, kept.unusable) == ({"paused": before.paused["paused"]}, {})
    assert kept.registered["paused"].rests


async def copied(client: Redis) -> dict[str, bytes]:
    """The whole registry, as a copy of the store has it."""
    found = {key: await client.dump(key) for key in msgspec.structs.astuple(KEYS)}
    return {key: value for key, value in found.items() if value is not None}


async def gone_back(client: Redis, copy: dict[str, bytes]) -> None:
    """Make the registry that of the copy, as a failover to it does."""
    await client.delete(*msgspec.structs.astuple(KEYS))
    for key, value in copy.items():
        await client.restore(key, 0, value)


@pytest.mark.parametrize("changes", [1, 2, 3])
async def test_other_changes_in_the_place_of_lost_ones_are_a_loss(store_client: Redis, changes: int) -> None:
    """Law: a registry that went back and has changed since is noticed at any version; the lost pause comes back."""
    registry, others = Registry(store_client, KEYS), ["b", "c", "d"][:changes]
    for name in ("a", "b", "c", "d"):
        await registry.add(name, SETTINGS, (), NOW)
    copy, first = await copied(store_client), await registry.all()
    await registry.pause("a", PAUSE)
    before = await registry.all()
    assert before.continues(first)
    assert before.continues(before)
    assert not (await registry.marks()).is_loss(before)
    await gone_back(store_client, copy)
    for name in others:
        await registry.pause(name, PAUSE)
    now = await registry.all()
    assert now.version == before.version + changes - 1
    assert (await registry.marks()).is_loss(before) == (changes == 1)
    assert (now.continues(first), now.continues(before), before.continues(now)) == (True, False, False)
    await registry.restore(before)
    assert set((await registry.all()).paused) == {"a", *others}


@pytest.mark.parametrize("more", [0, 1, 2])
async def test_what_was_resumed_after_a_loss_stays_resumed(store_client: Redis, more: int) -> None:
    """Law: restoring ends no resumption that came after the store went back, and says which pauses it brings back."""
    registry, others = Registry(store_client, KEYS), ["d", "e"][:more]
    for name in ("a", "b", "c", "d", "e"):
        await registry.add(name, SETTINGS, (), NOW)
    for name in ("b", "c"):
        await registry.pause(name, PAUSE)
        await registry.resume(name)
        await registry.pause(name, PAUSE)
    copy = await copied(store_client)
    await registry.pause("a", PAUSE)
    await registry.resume("b")  # is lost, too
    await registry.pause("b", PAUSE)
    before = await registry.all()

    async def later() -> bool:
        return (await registry.all()).at > before.at

    await until(later, "the store's next millisecond")
    await gone_back(store_client, copy)
    await registry.resume("c")
    for name in others:
        await registry.pause(name, PAUSE)
    assert await registry.restore(before) == RestoredPauses(paused=("a",))
    assert set((await registry.all()).paused) == {"a", "b", *others}
    assert await registry.restore(before) == RestoredPauses()


async def test_a_pause_that_comes_back_with_an_older_copy_is_ended_again(store_client: Redis) -> None:
    """Law: a resumption that the store loses is made good, and no pause that came later or ends by itself."""
    registry, names = Registry(store_client, KEYS), ("a", "again", "filed", "later", "stays")
    for name in names:
        await registry.add(name, SETTINGS, (), NOW)
        await registry.pause(name, Paused("removed" if name == "filed" else "failures", "down", NOW))
        await registry.note_health(name, "", b"failing")
    for name in ("fresh", "behind"):
        await registry.add(name, SETTINGS, (), NOW)
    await registry.pause("behind", PAUSE)
    await registry.resume("behind")
    copy = await copied(store_client)
    await registry.pause("fresh", PAUSE)
    for name in {*names, "fresh"} - {"stays"}:
        await registry.resume(name)
    await registry.remove("again")
    await registry.add("again", SETTINGS, (), NOW + timedelta(seconds=1))
    await registry.pause("again", PAUSE)
    await registry.resume("again")
    before = await registry.all()
    await gone_back(store_client, copy)
    await registry.resume("later")
    later = Paused("operator", "by request", moment_of(before.at + 1))
    for name in ("later", "fresh"):
        await registry.pause(name, later)
    await registry.pause("behind", PAUSE)  # by a process whose clock is behind

    def renewed(health: bytes) -> bytes:
        return health + b" no more"

    assert await registry.restore(before, renewed) == RestoredPauses(resumed=("a",))
    kept = await registry.all()
    assert set(kept.paused) == {"again", "behind", "filed", "fresh", "later", "stays"}
    assert (kept.paused["later"], kept.paused["fresh"]) == (later, later)
    assert (kept.registered["a"].rests, kept.unusable) == (False, {})
    assert (kept.health["a"][""], kept.health["stays"][""]) == (b"failing no more", b"failing")
    assert kept.pauses.resumed["a"] == before.pauses.resumed["a"]
    assert not kept.pauses.is_resumed_since("a", before.pauses.resumed["a"])
    assert await registry.restore(before, renewed) == RestoredPauses()


async def test_what_an_older_copy_has_otherwise_is_named(store_client: Redis) -> None:
    """Law: settings of before and removed subscriptions are named; what is new since, or of a file, is not."""
    registry = Registry(store_client, KEYS)
    await registry.sync([("filed", ONE)], NOW)
    for name in ("same", "changed", "removed", "replaced"):
        await registry.add(name, SETTINGS, (), NOW)
    assert older_subscriptions(await registry.all(), await registry.all()) == OlderSubscriptions()
    copy = await copied(store_client)
    await registry.sync([("filed", OTHER)], NOW)
    await registry.change("changed", OTHER)
    await registry.remove("removed")
    await registry.remove("replaced")
    await registry.add("replaced", SETTINGS, (), LATER)
    before = await registry.all()
    await gone_back(store_client, copy)
    await registry.add("new", SETTINGS, (), moment_of(before.at + 1))
    found = older_subscriptions(await registry.all(), before)
    assert found == OlderSubscriptions(changed=("changed",), returned=("removed", "replaced"))


def test_an_id_that_an_older_copy_has_for_one_of_run_time_keeps_no_other_away() -> None:
    """Law: a restoration leaves out what conflicts, with the reason, and brings back the rest as it was."""
    old = applied(Subscriptions(), registering.plan_file(Subscriptions(), {"b": OTHER}, NOW))
    kept = applied(old, registering.plan_addition(old, "a", ONE, (), NOW))
    before = msgspec.structs.replace(filed("a", "b", "c", "d"), version=9)
    file = {"a": ONE, "b": ONE, "c": OTHER}
    kept = applied(kept, registering.plan_file(kept, file, LATER, before))
    assert {name: one.origin for name, one in kept.registered.items()} == {"a": "run", "b": "file", "c": "file"}
    assert [kept.registered[name] for name in "bc"] == [before.registered[name] for name in "bc"]
    assert registering.plan_file(kept, file, LATER, before) == []
    found = file_differences(kept, file, before)
    assert (list(found.conflicts), found.differing, found.missing) == (["a"], ("c",), ("d",))
    assert "poller subscriptions remove a" in found.conflicts["a"]
    assert registering.plan_missing(kept, file, LATER, before) == []
    free = applied(kept, registering.plan_removal(kept, "a"))
    (write,) = registering.plan_missing(free, file, LATER, before)
    assert applied(free, [write]).registered["a"] == before.registered["a"]


def wanting(sink: str, *feeds: str) -> bytes:
    """The settings of a subscription of a file."""
    return msgspec.json.encode({"id": "a", "sink": f"https://{sink}.example", "feeds": feeds})


OLDER, NEWER, NEWEST = wanting("x", "s/one"), wanting("y", "s/one", "s/two"), wanting("z", "s/two", "s/three")


def history() -> tuple[Subscriptions, Subscriptions]:
    """A registry, a moment before and after a process with a newer file of subscription ``a`` has started."""
    copy = applied(Subscriptions(), registering.plan_file(Subscriptions(at=5), {"a": OLDER}, NOW))
    return copy, applied(copy, registering.plan_file(msgspec.structs.replace(copy, at=9), {"a": NEWER}, NOW))


@pytest.mark.parametrize("own", [OLDER, NEWER])
@pytest.mark.parametrize("is_gone", [False, True], ids=["older", "gone"])
def test_file_subscriptions_come_back_as_they_were(own: bytes, *, is_gone: bool) -> None:
    """Law: settings and moments are those before the loss, whichever file a process has; it counts for others alone."""
    copy, before = history()
    kept = msgspec.structs.replace(Subscriptions() if is_gone else copy, at=20)
    kept = applied(kept, registering.plan_file(kept, {"a": own, "new": OLDER}, LATER, before))
    assert kept.registered["a"] == before.registered["a"]
    assert {feed: kept.registered["a"].asked_for(feed) for feed in ("s/one", "s/two")} == {"s/one": 5, "s/two": 9}
    new = kept.registered["new"]
    assert (bytes(new.settings), new.since, new.asked) == (OLDER, LATER, 20)
    assert registering.plan_file(kept, {"a": OLDER, "new": OLDER}, LATER, before) == []


@pytest.mark.parametrize(
    ("file", "moments"),
    [
        (NEWER, {"s/one": 5, "s/two": 9}),
        (NEWEST, {"s/one": 5, "s/two": 9, "s/three": 15}),
    ],
    ids=["the same feeds", "others"],
)
@pytest.mark.parametrize("is_gone", [False, True], ids=["older", "gone"])
def test_a_file_that_is_registered_after_the_loss_counts(
    file: bytes, moments: dict[str, int], *, is_gone: bool
) -> None:
    """Law: a process that starts before the others notice the loss has the last word, but for what waits at feeds."""
    copy, before = history()
    kept = msgspec.structs.replace(Subscriptions() if is_gone else copy, at=15)
    kept = msgspec.structs.replace(applied(kept, registering.plan_file(kept, {"a": file}, LATER)), at=20)
    before = msgspec.structs.replace(before, version=9)
    one = applied(kept, registering.plan_file(kept, {"a": OLDER}, LATER, before)).registered["a"]
    assert bytes(one.settings) == file
    assert ({feed: one.asked_for(feed) for feed in moments}, one.since) == (moments, NOW)


@pytest.mark.parametrize("before", [["s/one", "s/two"], None])
@pytest.mark.parametrize("is_gone", [False, True], ids=["older", "gone"])
def test_a_feed_that_a_file_left_after_the_loss_was_left(before: list[str] | None, *, is_gone: bool) -> None:
    """Law: the feeds listed before the loss are left where a process that starts after it lists others."""
    copy, _ = history()
    settings, file = msgspec.json.encode({"feeds": before}), {"a": wanting("z", "s/three")}
    ends = {"": "0-0", "s/one": "9-7"}
    there = applied(copy, registering.plan_file(msgspec.structs.replace(copy, at=9), {"a": settings}, NOW, ends=ends))
    there = msgspec.structs.replace(there, version=9)
    kept = msgspec.structs.replace(Subscriptions() if is_gone else copy, at=15)
    kept = msgspec.structs.replace(applied(kept, registering.plan_file(kept, file, LATER, ends=ends)), at=20)
    one = applied(kept, registering.plan_file(kept, file, LATER, there)).registered["a"]
    assert [feed for feed in ALL_FEEDS[:3] if one.has_left(feed)] == ["s/one", "s/two"]
    assert one.unlisted_at("s/two") == 15


def test_a_registry_that_has_lost_a_part_keeps_what_was_changed_since() -> None:
    """Law: where the registry continues, a file that was registered since is not undone, and no lost one is missed."""
    _, before = history()
    more = applied(before, registering.plan_file(before, {"a": wanting("z", "s/one", "s/two"), "b": ONE}, LATER))
    assert registering.plan_file(more, {"a": OLDER}, LATER, before) == []
    lost = msgspec.structs.replace(more, registered={"b": more.registered["b"]})
    assert (
        applied(lost, registering.plan_file(lost, {"a": OLDER}, LATER, before)).registered["a"]
        == (before.registered["a"])
    )


def test_what_the_sink_of_an_older_copy_said_is_not_the_present_one_s() -> None:
    """Law: a file subscription that comes back with another sink than in the copy asks for permission again."""
    copy, before = history()
    kept = applied(copy, [("handshakes", "a", b"granted")])
    before = msgspec.structs.replace(before, version=9)
    assert applied(kept, registering.plan_file(kept, {"a": OLDER}, LATER, before)).handshakes == {}


@pytest.mark.parametrize(
    ("before", "resumed", "at", "expected"),
    [
        (0, 0, 9_000, False),
        (0, 5_000, 9_000, True),
        (5_000, 5_000, 9_000, False),
        (5_000, 8_000, 9_000, True),
        (5_000, 4_000, 9_000, False),  # the store went back
        (5_000, 0, 9_000, False),
        (5_000, 4_000, 4_500, False),  # to one whose clock is a little behind
        (5_000, 3_000, 3_500, True),  # the clock was set back
        (5_000, 5_000, 3_500, False),
        (5_000, 0, 3_500, False),
        (5_000, 3_000, 0, False),
    ],
)
def test_only_a_newer_moment_is_a_resumption(before: int, resumed: int, at: int, *, expected: bool) -> None:
    """Law: an earlier moment, or none, is that of an older copy, unless the store's clock was set back."""
    pauses = SinkPauses(resumed={"a": resumed} if resumed else {}, at=at)
    assert pauses.is_resumed_since("a", before) == expected


async def test_a_change_planned_on_what_is_lost_is_not_written(store_client: Redis) -> None:
    """Law: a change that was planned before the registry went back is planned again, at the same version, too."""
    registry = Registry(store_client, KEYS)
    for name in ("a", "b"):
        await registry.add(name, SETTINGS, (), NOW)
    copy = await copied(store_client)
    await registry.pause("a", PAUSE)
    planned_on = await registry.all()
    await gone_back(store_client, copy)
    await registry.pause("b", PAUSE)
    assert (await registry.all()).version == planned_on.version
    assert not await registry._write(planned_on, [("paused", "a", None)])
    assert await registry._write(await registry.all(), [("paused", "a", None)])


async def test_changes_by_an_earlier_version_of_the_program_are_no_loss(store_client: Redis) -> None:
    """Law: changes without a digest, before, between and behind others, are read by their version alone."""

    async def earlier(name: str) -> None:
        await store_client.hset(KEYS.paused, name, msgspec.json.encode(PAUSE))
        await store_client.incr(KEYS.version)

    registry = Registry(store_client, KEYS)
    for name in ("a", "b", "c", "d"):
        await registry.add(name, SETTINGS, (), NOW)
    await store_client.delete(KEYS.changes)
    readings = [await registry.all()]
    assert readings[0].changes == ()
    for change in (earlier("a"), registry.pause("b", PAUSE), earlier("c"), registry.pause("d", PAUSE)):
        await change
        marks, now = await registry.marks(), await registry.all()
        assert not any(marks.is_loss(reading) for reading in [*readings, now])
        assert all(now.continues(reading) for reading in readings)
        readings.append(now)
    assert len(readings[-1].changes) == 2
    assert await registry.version() == 8


async def test_so_many_changes_that_the_first_has_no_digest_any_more_are_no_loss(store_client: Redis) -> None:
    """Law: digests are bounded; a process that has missed more changes than have one takes them as they are."""
    registry = Registry(store_client, KEYS)
    await registry.add("a", SETTINGS, (), NOW)
    before = await registry.all()
    for number in range(1, 70):
        await registry.change("a", b'{"rate":%d}' % number)
        assert (await registry.all()).continues(before), number
    assert await store_client.strlen(KEYS.changes) == 1024


async def test_a_lost_secret_makes_a_subscription_unusable(store_client: Redis) -> None:
    """Law: a subscription that had a secret made for it is not delivered without it; one without secrets is."""
    registry = Registry(store_client, KEYS)
    await registry.add("signed", SETTINGS, ("whsec_x",), NOW)
    await registry.add("plain", SETTINGS, (), NOW)
    assert not (await registry.all()).unusable
    await store_client.delete(KEYS.secrets)
    assert list((await registry.all()).unusable) == ["signed"]


async def test_forgotten_at_a_feed(store_client: Redis) -> None:
    """Law: only this subscription's group and keys at this feed are deleted, also twice; all events stay."""
    feed = FeedKeys.of("poller", "acme/contractTypes")
    for name in ("a", "ab"):
        pair = ConsumerKeys.of("poller", "acme/contractTypes", name)
        await store_client.xgroup_create(feed.events, group_of(name), mkstream=True)
        await store_client.set(pair.lease, "n")
        await store_client.hset(pair.parked, "1-0", "x")
        await store_client.zadd(pair.letter_times, {"1-0": 1})
    await store_client.xadd(feed.events, {"data": "x"})
    before = await all_keys(store_client)
    for _ in range(2):
        await forget(store_client, feed, ConsumerKeys.of("poller", "acme/contractTypes", "a"), "a")
    left = await all_keys(store_client)
    assert {key for key in before - left if b":sub:a:" not in key} == set()
    assert len(before - left) == 3
    assert [group["name"] for group in await store_client.xinfo_groups(feed.events)] == [b"sub:ab"]
    other = FeedKeys.of("poller", "acme/never")
    await forget(store_client, other, ConsumerKeys.of("poller", "acme/never", "a"), "a")
    assert not await store_client.exists(other.events)


async def test_they_are_read_while_memory_is_full(server: str) -> None:
    """Law: subscriptions can be read from a server that is out of memory."""
    async with commands(server) as client:
        registry = Registry(client, KEYS)
        await registry.add("a", SETTINGS, (), NOW)
        await client.config_set("maxmemory", 1)
        try:
            with pytest.raises(StoreError, match="maxmemory"):
                await registry.add("b", SETTINGS, (), NOW)
            assert set((await registry.all()).registered) == {"a"}
            assert (await registry.marks()).registered == 1
        finally:
            await client.config_set("maxmemory", 0)


@pytest.mark.parametrize("text", [b"", b"[]", b"\xff", b'{"feeds":3}', b'{"sink":{}}', b'{"sink":"\xff"}', b"[" * 9000])
def test_settings_that_cannot_be_read_count_as_all_feeds_from_the_earliest(text: bytes) -> None:
    """Law: unreadable settings raise nothing and keep every event of every feed."""
    found = outline_of(text)
    assert found is UNREADABLE
    assert (found.wants("acme/any"), found.is_from_earliest, found.handshake) == (True, True, False)


def test_an_outline_is_read_whatever_a_later_version_adds() -> None:
    """Law: unknown keys are ignored, and an unknown start keeps what the stream holds."""
    found = outline_of(b'{"id":"a","sink":"https://s","feeds":["a/b"],"start":"later","validate":true,"new":[1]}')
    assert found == SubscriptionOutline("https://s", ("a/b",), "later", handshake=True)
    assert (found.wants("a/b"), found.wants("a/c"), found.is_from_earliest) == (True, False, True)
    assert not outline_of(b'{"sink":"https://s"}').is_from_earliest
    assert not outline_of(b'{"sink":"https://s","start":"snapshot"}').is_from_earliest


@pytest.mark.parametrize("by", ["operator", "sink"])
async def test_a_pause_that_the_store_loses_while_no_process_runs_is_missed(store_client: Redis, by: Pauser) -> None:
    """Law: a subscription whose pause is gone is not delivered until it is resumed, or paused again."""
    registry, pause = Registry(store_client, KEYS), Paused(by, "moving house", NOW)
    await registry.add("a", SETTINGS, (), NOW)
    for _ in range(2):
        if by == "operator":
            await registry.pause("a", pause)
        else:
            assert await registry.rest("a", pause, sink="https://sink.example.org")
        assert (await registry.all()).unusable == {}
        await store_client.delete(KEYS.paused)
        assert "lost its pause" in (await registry.all()).unusable["a"]
    before = await registry.resume("a")
    assert before is not None
    assert "lost its pause" in before.reason
    kept = await registry.all()
    assert (kept.unusable, kept.paused, kept.registered["a"].rests) == ({}, {}, False)
    assert await registry.resume("a") is None


async def test_a_pause_leaves_a_registration_that_cannot_be_read_as_it_is(store_client: Redis) -> None:
    """Law: a subscription that another version wrote can be paused; nothing is written over its settings."""
    registry = Registry(store_client, KEYS)
    await store_client.hset(KEYS.registry, "a", b"[]")
    await registry.pause("a", PAUSE)
    assert await store_client.hget(KEYS.registry, "a") == b"[]"
    assert (await registry.all()).paused == {"a": PAUSE}


async def test_a_health_that_changes_meanwhile_is_changed_as_it_is_then(store_client: Redis) -> None:
    """Law: what an operator's command has made of a health is not overwritten by a change of the one before."""
    registry, seen = Registry(store_client, KEYS), list[bytes | None]()
    await registry.add("a", SETTINGS, (), NOW)
    await registry.note_health("a", "", b"failing")
    asking = Registry(store_client, KEYS)

    class Interrupted(Registry):
        async def health(self, subscription: str, feed: str) -> bytes | None:
            kept = await super().health(subscription, feed)
            if not seen:
                await asking.note_health("a", "", b"resumed")
            return kept

    def changed(kept: bytes | None) -> bytes | None:
        seen.append(kept)
        return (kept or b"") + b" and more"

    await Interrupted(store_client, KEYS).change_health("a", "", changed)
    assert seen == [b"failing", b"resumed"]
    assert await registry.health("a", "") == b"resumed and more"
    await registry.change_health("b", "", changed)
    assert await registry.health("b", "") is None


async def test_the_health_of_many_is_stored_in_one_request(store_client: Redis) -> None:
    """Healths that are noted at the same time are one request; that of an unknown subscription is not stored."""
    registry = Registry(store_client, SubscriptionKeys.of("p"))
    for name in ("a", "b", "c"):
        await registry.add(name, b"{}", [], NOW)
    names = ["a", "b", "unknown", "c"]
    for turn in (b"1", b"2"):
        noted = await asyncio.gather(*(registry.note_health(name, "s/f", turn + name.encode()) for name in names))
        assert noted == [True, True, False, True]
        kept = (await registry.all()).health
        assert kept == {name: {"s/f": turn + name.encode()} for name in ("a", "b", "c")}
