"""What each change of the subscriptions comes to."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from poller.errors import ConfigurationError, SubscriptionTaken, SubscriptionUnknown
from poller.store import registering
from poller.store.registering import PARTS, Synced, Write
from poller.store.registrations import Paused, Subscriptions, health_field, milliseconds_of, subscriptions_of

NOW = datetime(2026, 3, 2, 8, 15, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)
TOKEN = b'{"a":"t0ken"}'
ONE, OTHER = b'{"id":"a","rate":1.0}', b'{"id":"a","rate":1}'


def applied(kept: Subscriptions, writes: list[Write]) -> Subscriptions:
    """The value after these writes, by way of what the store holds."""
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
    """Subscriptions that a file brought."""
    return applied(Subscriptions(), registering.syncing(Subscriptions(), dict.fromkeys(names, settings), NOW)[0])


def test_the_file_is_taken_over_once() -> None:
    """Law: new ones are added, changed ones keep since when they are there, and the same file again writes nothing."""
    kept = filed("a", "b")
    assert registering.syncing(kept, {"b": ONE, "a": ONE}, LATER) == ([], Synced())
    writes, told = registering.syncing(kept, {"a": OTHER, "b": ONE, "c": ONE}, LATER)
    assert told == Synced(added=("c",), changed=("a",))
    after = applied(kept, writes)
    assert {name: one.since for name, one in after.registered.items()} == {"a": NOW, "b": NOW, "c": LATER}
    assert bytes(after.registered["a"].settings) == OTHER
    assert {one.origin for one in after.registered.values()} == {"file"}


def test_since_when_a_feed_is_wanted() -> None:
    """Law: since it was asked for by the store's clock; other settings change nothing of that, other feeds do."""
    first = registering.syncing(Subscriptions(at=5), dict.fromkeys(("a", "b", "c"), ONE), NOW)[0]
    kept = applied(Subscriptions(), first)
    assert {one.asked for one in kept.registered.values()} == {5}
    other, feeds = b'{"sink":"https://other"}', b'{"feeds":["acme/one"]}'
    changed = registering.syncing(msgspec.structs.replace(kept, at=9), {"a": other, "b": feeds, "c": ONE}, LATER)[0]
    kept = applied(kept, changed + registering.adding(msgspec.structs.replace(kept, at=11), "d", ONE, (), NOW))
    assert {name: one.asked for name, one in kept.registered.items()} == {"a": 5, "b": 9, "c": 5, "d": 11}
    lost = applied(Subscriptions(), registering.syncing(Subscriptions(at=20), {"a": ONE, "new": ONE}, LATER, kept)[0])
    assert {name: one.asked for name, one in lost.registered.items()} == {"a": 5, "new": 20}


def test_what_leaves_the_file_rests_until_it_returns() -> None:
    """Law: it is paused, not dropped, told once, and goes on by itself when the file has it again."""
    writes, told = registering.syncing(filed("a", "b"), {"b": ONE}, NOW)
    assert told == Synced(removed=("a",))
    gone = applied(filed("a", "b"), writes)
    assert "a" in gone.registered
    assert gone.paused["a"].by == "removed"
    assert registering.syncing(gone, {"b": ONE}, LATER) == ([], Synced())
    writes, told = registering.syncing(gone, {"a": OTHER, "b": ONE}, LATER)
    assert told == Synced(changed=("a",), returned=("a",))
    assert not applied(gone, writes).paused


def test_a_return_ends_no_other_pause() -> None:
    """Law: what an operator, its sink or its failures have paused stays so, whatever the file does."""
    for by in ("operator", "sink", "failures"):
        pause = Paused(by, "so", NOW)
        kept = applied(filed("a"), registering.pausing(filed("a"), "a", pause)[0])
        gone = applied(kept, registering.syncing(kept, {}, LATER)[0])
        back = applied(gone, registering.syncing(gone, {"a": ONE}, LATER)[0])
        assert back.paused == gone.paused == {"a": pause}
    gone = applied(filed("a"), registering.syncing(filed("a"), {}, NOW)[0])
    rests = applied(gone, registering.pausing(gone, "a", Paused("operator", "so", LATER))[0])
    assert applied(rests, registering.syncing(rests, {"a": ONE}, LATER)[0]).paused["a"].by == "operator"


def test_one_of_the_file_and_one_of_run_time_cannot_be_the_same() -> None:
    """Law: neither takes the place of the other; both are named, and nothing of the file is taken over."""
    kept = applied(Subscriptions(), registering.adding(Subscriptions(), "a", ONE, (), NOW))
    with pytest.raises(ConfigurationError, match=r'"a" is in the configuration file.*added at run time.*remove a'):
        registering.syncing(kept, {"a": ONE, "b": ONE}, NOW)
    assert registering.syncing(kept, {"b": ONE}, NOW)[1] == Synced(added=("b",))
    with pytest.raises(SubscriptionTaken):
        registering.adding(filed("a"), "a", ONE, (), NOW)


def test_removed_is_gone_altogether() -> None:
    """Law: no part keeps anything of a removed subscription."""
    added = registering.adding(Subscriptions(), "a", ONE, ["whsec_x"], NOW, credential=TOKEN)
    kept = applied(Subscriptions(), added)
    parts: list[Write] = [
        ("health", "a", b"1"),
        ("health", "a s/f", b"2"),
        ("health", "a s/g", b"3"),
        ("until", "a", b"5"),
        ("handshakes", "a", b"1"),
    ]
    kept = applied(kept, [*parts, *registering.pausing(kept, "a", Paused("sink", "410", NOW))[0]])
    assert all(getattr(kept, part if part != "registry" else "registered") for part in PARTS)
    assert applied(kept, registering.removing(kept, "a")) == Subscriptions(version=kept.version + 1)


def test_a_credential_changes_as_it_is_asked_for() -> None:
    """Law: it stays with other settings, unless who changes them says otherwise of both as they are now."""
    kept = applied(Subscriptions(), registering.adding(Subscriptions(), "a", ONE, (), NOW, credential=TOKEN))
    assert [part for part, *_ in registering.changing(kept, "a", OTHER)] == ["registry"]
    assert registering.changing(kept, "a", ONE, lambda *was: TOKEN if was == (ONE, TOKEN) else b"other") == []
    assert registering.changing(kept, "a", ONE, lambda _, __: b"new") == [("credentials", "a", b"new")]
    gone = registering.changing(kept, "a", OTHER, lambda _, __: None)
    assert gone[1:] == [("credentials", "a", None)]
    assert applied(kept, gone).credentials == {}


def test_a_new_one_has_no_credential_of_another() -> None:
    """Law: what a store that lost the registry alone still holds is not sent for who has the same id now."""
    left = Subscriptions(credentials={"a": TOKEN, "b": TOKEN, "c": TOKEN})
    left = applied(left, registering.syncing(left, {"a": ONE}, NOW)[0])
    left = applied(left, registering.adding(left, "b", ONE, (), NOW))
    assert left.credentials == {"c": TOKEN}


def test_resumed_starts_again() -> None:
    """Law: the pause ends, its health is renewed, and the caller is told what had paused it."""
    pause = Paused("failures", "5 d", NOW)
    kept = applied(
        filed("a"),
        [("health", "a", b"bad"), ("health", "a s/f", b"bad"), *registering.pausing(filed("a"), "a", pause)[0]],
    )
    writes, before = registering.resuming(kept, "a", lambda _: b"good")
    after = applied(kept, writes)
    assert (before, after.paused, after.health) == (pause, {}, {"a": {"": b"good", "s/f": b"good"}})
    assert registering.resuming(after, "a", lambda health: health) == ([], None)


@pytest.mark.parametrize("change", ["removing", "pausing", "resuming"])
def test_what_is_not_there_is_told(change: str) -> None:
    """Law: an id that nobody has is an error that names those there are."""
    arguments: dict[str, Any] = {"pausing": Paused("operator", "", NOW), "resuming": bytes}
    with pytest.raises(SubscriptionUnknown, match='"x"; there are a, b'):
        getattr(registering, change)(filed("b", "a"), "x", *filter(None, [arguments.get(change)]))


def test_no_secret_is_shown() -> None:
    """Law: neither the value's repr nor an error about what cannot be read holds a secret."""
    added = registering.adding(Subscriptions(), "a", ONE, ["whsec_x"], NOW, credential=TOKEN)
    kept = applied(Subscriptions(), added)
    assert (kept.secrets, kept.credentials) == ({"a": ("whsec_x",)}, {"a": TOKEN})
    assert "whsec" not in repr(kept)
    assert "t0ken" not in repr(kept)
    with pytest.raises(ValueError, match=r"^secrets, a$") as caught:
        subscriptions_of(b"1", [{}, {b"a": b"whsec_x"}, {}, {}, {}, {}, {}])
    assert caught.value.__cause__ is None
