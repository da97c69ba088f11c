"""``poller replay``: its span, what it refuses, and ``--wait``, on a real store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, cast

import pytest
from redis import Redis

from poller.cli.replay import entry_id_at
from poller.errors import ConfigurationError
from poller.redis.client import commands
from poller.store.keys import ConsumerKeys, FeedKeys, SubscriptionKeys
from poller.store.registry import Registry
from poller.store.subscriptions import Paused
from tests.cli.conftest import Called, started
from tests.delivery.events import entry
from tests.harness.waiting import patience
from tests.stores import looking

FEED: Final = "default/contractTypes"
EVENTS: Final = FeedKeys.of("poller", FEED).events
KEYS: Final = ConsumerKeys.of("poller", FEED, "a")
NOW: Final = datetime(2026, 3, 2, 8, 15, tzinfo=UTC)


@pytest.fixture
def server(store_url: str) -> str:
    return store_url


@pytest.fixture
def store(server: str) -> Iterator[Redis]:
    """Ten events, one a second; the subscription a has read nine of them."""
    with looking(server) as client:
        for number in range(1, 11):
            client.xadd(EVENTS, {"data": entry(number=number)}, id=f"{number * 1000}-0")
        client.xgroup_create(EVENTS, "sub:a", id="9000-0")
        asyncio.run(_registered(server))
        yield client


async def _registered(url: str) -> None:
    async with commands(url) as client:
        registry = Registry(client, SubscriptionKeys.of("poller"))
        settings = b'{"id":"a","sink":"https://h.example.org","feeds":["%s"]}' % FEED.encode()
        await registry.add("a", settings, (), NOW)
        await registry.pause("a", Paused("operator", "why", NOW))


async def _resumed(url: str) -> None:
    async with commands(url) as client:
        await Registry(client, SubscriptionKeys.of("poller")).resume("a")


@pytest.fixture
def configured(server: str) -> dict[str, str]:
    return {"POLLER_BASE_URL": "http://127.0.0.1:1", "POLLER_TOKEN": "t", "REDIS_URL": server}


def kept(store: Redis) -> tuple[bytes | None, bytes | None]:
    after, to = cast("list[bytes | None]", store.hmget(KEYS.state, ["replay_after", "replay_to"]))
    return after, to


Covered = tuple[list[str], int, tuple[bytes, bytes]]
COVERED: tuple[Covered, ...] = (
    (["--from", "earliest"], 9, (b"999-18446744073709551615", b"9000-0")),
    (["--from", "3000-0", "--to", "5000"], 3, (b"2999-18446744073709551615", b"5000-0")),
    (["--from", "1970-01-01T00:00:02.5Z", "--to", "1970-01-01T01:00:04+01:00"], 2, (b"2999-", b"4000-0")),
    (["--from", "9000h", "--to", "1m", FEED], 0, (b"", b"")),
)


@pytest.mark.parametrize("covered", COVERED)
def test_the_span(called: Called, configured: dict[str, str], store: Redis, covered: Covered) -> None:
    """Both ends are included; events not yet read for the subscription are not; a paused one gets them later."""
    arguments, events, span = covered
    told = called("replay", "a", *arguments, **configured)
    assert told.code == 0
    assert told.out == (f"{FEED}: {events} events to replay\n" if events else "no events there\n")
    assert "a is paused" in told.err
    after, to = kept(store)
    assert (after or b"").startswith(span[0])
    assert (to or b"") == span[1]
    assert store.exists(SubscriptionKeys.of("poller").parked) == bool(events)


def test_a_span_that_ends_before_it_begins_is_refused(called: Called, configured: dict[str, str]) -> None:
    """A reversed span is an error, and no empty replay."""
    ended = called("replay", "a", "--from", "1h", "--to", "2h", **configured)
    assert (ended.code, "--from 1h is after --to 2h" in ended.err) == (2, True)


def test_the_end_includes_its_whole_millisecond(called: Called, configured: dict[str, str], store: Redis) -> None:
    """Of several events of one millisecond a replay to that millisecond has the last one, too."""
    store.xadd(EVENTS, {"data": entry(number=11)}, id="10000-1")
    store.xgroup_setid(EVENTS, "sub:a", "10000-1")
    told = called("replay", "a", "--from", "10000", "--to", "10000", **configured)
    assert told.out == f"{FEED}: 2 events to replay\n"
    assert kept(store)[1] == b"10000-1"


def test_one_at_a_time(called: Called, configured: dict[str, str], store: Redis) -> None:
    """While a replay is in progress another is refused; after it is cancelled there is none to cancel."""
    assert called("replay", "a", "--from", "earliest", **configured).code == 0
    before = kept(store)
    second = called("replay", "a", "--from", "5000-0", **configured)
    assert (second.code, f"a replay of {FEED} is in progress" in second.err, kept(store)) == (1, True, before)
    assert called("replay", "a", "--cancel", **configured).out == f"{FEED}: replay cancelled\n"
    none = called("replay", "a", "--cancel", **configured)
    assert (none.code, "no replay of a is in progress" in none.err) == (1, True)


async def test_wait_follows_a_replay_in_progress(configured: dict[str, str], store: Redis, tmp_path: Path) -> None:
    """``--wait`` alone shows the progress of a replay until its end; without a replay it fails.

    At the end it counts the events that still wait for their next attempt.
    """
    await _resumed(configured["REDIS_URL"])
    async with started("replay", "a", "--wait", cwd=tmp_path, **configured) as none:
        _, err = await none.communicate()
        assert (none.returncode, b"no replay of a is in progress" in err) == (1, True)
    span = {"replay": "r", "replay_after": "2000-0", "replay_to": "9000-0"}
    for name, value in span.items():
        store.hset(KEYS.state, name, value)
    async with started("replay", "a", "--wait", cwd=tmp_path, **configured) as joined, patience("the process to end"):
        assert joined.stdout is not None
        assert await joined.stdout.readline() == f"{FEED}: 7 events left to replay\n".encode()
        assert await joined.stdout.readline() == f"{FEED}: 0 of 7\n".encode()
        store.hset(KEYS.parked, "3000-0", b"x")
        store.hset(KEYS.parked, "4000-0", b"x")
        store.hset(KEYS.state, "replayed", "r")
        store.hdel(KEYS.state, *span)
        assert await joined.stdout.read() == (
            f"{FEED}: 7 of 7\n{FEED}: 2 events waiting for the next attempt\n".encode()
        )
        assert await joined.wait() == 0


async def test_a_pause_ends_wait(configured: dict[str, str], store: Redis, tmp_path: Path) -> None:
    """A paused subscription ends ``--wait`` with exit code 1, who paused it and why; the replay stays."""
    asking = ("replay", "a", "--from", "earliest", "--wait")
    async with started(*asking, cwd=tmp_path, **configured) as asked, patience("the process to end"):
        _, err = await asked.communicate()
    assert (asked.returncode, b"a is paused (operator: why)" in err) == (1, True)
    assert err.count(b"is paused") == 1
    await _resumed(configured["REDIS_URL"])
    async with started("replay", "a", "--wait", cwd=tmp_path, **configured) as joined, patience("the process to end"):
        assert joined.stdout is not None
        assert await joined.stdout.readline() == f"{FEED}: 9 events left to replay\n".encode()
        assert await joined.stdout.readline() == f"{FEED}: 0 of 9\n".encode()
        async with commands(configured["REDIS_URL"]) as client:
            gone = Paused("sink", "it answered 410", NOW)
            await Registry(client, SubscriptionKeys.of("poller")).pause("a", gone)
        _, err = await joined.communicate()
    assert (joined.returncode, b"a is paused (sink: it answered 410)" in err) == (1, True)
    assert kept(store)[1] == b"9000-0"


def test_a_stream_that_was_trimmed(called: Called, configured: dict[str, str], store: Redis) -> None:
    """A start before the first entry of a trimmed stream is refused with the first entry; no replay starts."""
    store.xtrim(EVENTS, minid="4000-0", approximate=False)
    told = called("replay", "a", "--from", "2000-0", **configured)
    assert told.code == 1
    assert f"{FEED} does not go back so far any more: it begins at 1970-01-01T00:00:04.000Z" in told.err
    assert "--from 4000-0" in told.err
    assert kept(store) == (None, None)
    told = called("replay", "a", "--from", "earliest", **configured)
    assert told.out.startswith(f"{FEED}: 6 events")
    assert f"{FEED} begins at 1970-01-01T00:00:04.000Z" in told.err


def test_an_empty_stream(called: Called, configured: dict[str, str], store: Redis) -> None:
    """If no delivered event is left in the stream, the command says so and begins nothing."""
    store.xtrim(EVENTS, maxlen=0, approximate=False)
    told = called("replay", "a", "--from", "2000-0", **configured)
    assert (told.code, "holds none of its events any more" in told.err) == (1, True)
    assert called("replay", "a", "--from", "earliest", **configured).out == "no events there\n"
    assert kept(store) == (None, None)


WRONG: tuple[tuple[list[str], int, str], ...] = (
    (["a"], 2, "or --cancel alone"),
    (["a", "--from", "1-0", "--cancel"], 2, "or --cancel alone"),
    (["a", "--from", "yesterday"], 2, '--from is "yesterday"; expected the id of'),
    (["a", "--from", "2026-03-02T08:15:00"], 2, "expected the id of"),
    (["a", "--from", "1-0", "--to", f"{2**64}-0"], 2, "--to is"),
    (["nix", "--from", "1-0"], 2, 'no subscription "nix"'),
    (["a", "achievements", "--from", "1-0"], 2, "a does not subscribe to default/achievements"),
)


def test_wrong_use(called: Called, configured: dict[str, str], store: Redis) -> None:
    """Wrong usage is reported in one paragraph with the right exit code, and no replay starts."""
    for arguments, code, says in WRONG:
        ended = called("replay", *arguments, **configured)
        assert (ended.code, ended.out) == (code, ""), arguments
        assert says in ended.err, arguments
    store.xgroup_destroy(EVENTS, "sub:a")
    ended = called("replay", "a", "--from", "1-0", **configured)
    assert (ended.code, f"{FEED} has not begun for a yet" in ended.err) == (1, True)
    assert kept(store) == (None, None)


def test_entry_ids() -> None:
    """An id stays as it is, a moment becomes its millisecond, a duration counts back from now."""
    assert entry_id_at("5-7", "--from", NOW) == "5-7"
    assert entry_id_at("5", "--to", NOW, is_end=True) == f"5-{2**64 - 1}"
    assert (
        entry_id_at("2026-03-02T09:15:00+01:00", "--from", NOW) == entry_id_at("0s", "--from", NOW) == "1772439300000-0"
    )
    assert entry_id_at("1h", "--from", NOW) == "1772435700000-0"
    with pytest.raises(ConfigurationError):
        entry_id_at("0001-01-01T00:00:00+14:00", "--from", NOW)
