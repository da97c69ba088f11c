"""Laws of :mod:`poller.store.members`, on all stores: the version of the member list shows every change of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import cast

import pytest
from redis.asyncio import Redis

from poller.redis.client import commands
from poller.store.keys import MemberKeys
from poller.store.members import UNSAID, MemberConfiguration, MemberList, Members, members_now, members_seen
from tests.harness.clock import store_clock
from tests.harness.waiting import strain, until
from tests.stores import all_keys

KEYS = MemberKeys.of("poller")
LONG = timedelta(seconds=30)
POLL, BOTH = ["poll"], ["poll", "deliver"]


@pytest.fixture
async def client(any_store: str) -> AsyncIterator[Redis]:
    client = commands(any_store)
    yield client
    await client.aclose()


def member(client: Redis, name: str, ttl: timedelta = LONG) -> Members:
    return Members(client, KEYS, name=name, ttl=ttl, shebang="#!lua\n", clock=store_clock())


async def test_each_change_is_another_version(client: Redis) -> None:
    """Law: the version changes when a process joins, changes its roles, leaves or releases leases, and only then."""
    one, other = member(client, "b"), member(client, "a")
    alone = await one.beat(BOTH, MemberList())
    assert alone.roles == {"b": {"poll", "deliver"}}
    assert await one.beat(BOTH, alone) is alone
    assert await one.read(alone) is alone
    both = await other.beat(POLL, MemberList())
    assert both.version != alone.version
    assert (both.doing("poll"), both.doing("deliver")) == (("a", "b"), ("b",))
    assert await one.read(alone) == both
    less = await one.beat(["deliver"], both)
    assert (less.doing("poll"), less.doing("deliver")) == (("a",), ("b",))
    told = await one.read(less, tell=True)
    assert (told.version != less.version, told.roles) == (True, less.roles)
    left = await one.leave(told)
    assert left.roles == {"a": {"poll"}}
    assert await one.leave(left) is left
    assert await members_now(client, KEYS) == left.roles


async def test_a_list_that_went_back_and_has_changed_since_is_another_one(client: Redis) -> None:
    """Law: after a failover that lost who had come last, the list with another one is read, though it has as many."""
    one = member(client, "one")
    alone = await one.beat(POLL, MemberList())
    copy = {key: await client.dump(key) or b"" for key in (KEYS.version, KEYS.roles, KEYS.beats, KEYS.configurations)}
    lost = await member(client, "lost").beat(POLL, alone)
    assert (await one.read(alone)).doing("poll") == ("lost", "one")
    at = await _time(client)

    async def later() -> bool:
        return await _time(client) > at + 0.001

    await until(later, "the store's next millisecond")
    for key, value in copy.items():
        await client.restore(key, 0, value, replace=True)
    await member(client, "other").beat(POLL, MemberList())
    assert (await one.read(lost)).doing("poll") == ("one", "other")


async def test_one_that_is_silent_is_gone(client: Redis) -> None:
    """Law: a silent process leaves the list after its term by the server's clock, and may come back."""
    silent, other = member(client, "silent", timedelta(seconds=0.3 * min(strain(), 4))), member(client, "other")
    seen = await other.beat(POLL, await silent.beat(POLL, MemberList()))
    assert seen.doing("poll") == ("other", "silent")
    await until(lambda: _gone(client, "silent"), "the silent process to leave the list")
    gone = await other.read(seen)
    assert gone.doing("poll") == ("other",)
    assert gone.version != seen.version
    assert (await silent.beat(POLL, seen)).doing("poll") == ("other", "silent")


async def test_what_a_silent_one_has_said_is_kept_for_two_terms(client: Redis) -> None:
    """Law: it is kept beside the list, which neither has that process nor changes when this ends.

    A process that only looks does not end it: its own term may be another.
    """
    silent, other = member(client, "silent"), member(client, "other")
    seen = await other.beat(POLL, await silent.beat(POLL, MemberList()))
    await fall_silent(client, "silent", terms=1.9)
    gone = await other.beat(POLL, seen)
    assert set(gone.roles) == set(gone.configurations) == {"other"}
    assert gone.version != seen.version
    assert await other.beat(POLL, gone) is gone
    assert await other.read(gone) is gone
    assert (await members_seen(client, KEYS)).roles == gone.roles
    told = await other.read(gone, tell=True)
    assert told.roles == gone.roles
    assert await _kept(client) == [b"other", b"silent"]
    await fall_silent(client, "silent", terms=2.1)
    assert await member(client, "", timedelta(seconds=1)).read(told) is told
    assert await _kept(client) == [b"other", b"silent"]
    assert await other.beat(POLL, told) is told
    assert await _kept(client) == [b"other"]


async def test_a_silent_one_comes_back_or_leaves(client: Redis) -> None:
    """Law: a silent process that beats is in the list as before; of one that leaves nothing is kept."""
    silent, other = member(client, "silent"), member(client, "other")
    seen = await other.beat(POLL, await silent.beat(BOTH, MemberList()))
    for terms in (0.1, 2.1):
        await fall_silent(client, "silent", terms=terms)
        gone = await other.read(seen)
        back = await silent.beat(BOTH, gone)
        assert (back.roles, back.configurations) == (seen.roles, seen.configurations)
        assert back.version not in {seen.version, gone.version}
        assert await other.beat(POLL, back) is back
        assert await _kept(client) == [b"other", b"silent"]
        seen = back
    await fall_silent(client, "silent", terms=0.1)
    gone = await other.read(seen)
    assert await silent.leave(gone) is gone
    assert await _kept(client) == [b"other"]


async def test_a_beat_from_before_the_clock_was_set_back_is_for_one_term(client: Redis) -> None:
    """Law: a beat dated ahead of the server's clock, which was set back, counts for one term at most."""
    other = member(client, "other", timedelta(seconds=2))
    seen = await member(client, "gone").beat(POLL, MemberList())
    at = await _time(client)
    await client.zadd(KEYS.beats, {"gone": (at + 30 * 86_400) * 1000})
    seen = await other.beat(POLL, seen)
    assert seen.doing("poll") == ("gone", "other")  # the process may be alive and beat again
    score = await client.zscore(KEYS.beats, "gone")
    assert score is not None
    assert score / 1000 - at < 30


async def test_a_beat_is_for_one_term(client: Redis) -> None:
    """Law: a process that goes on beating stays in the list, however short its term is."""
    term = timedelta(seconds=0.6 * min(strain(), 4))
    busy, other = member(client, "busy", term), member(client, "other")
    seen = await other.beat(POLL, await busy.beat(POLL, MemberList()))
    begun, terms = await _time(client), 0.0

    async def beats() -> bool:
        nonlocal terms
        assert await busy.beat(POLL, seen) is seen
        assert await other.read(seen) is seen
        terms = (await _time(client) - begun) / term.total_seconds()
        return terms > 1.5

    await until(beats, "more than a term to pass by the server's clock", every=0.05)


async def fall_silent(client: Redis, name: str, *, terms: float) -> None:
    """Let the last beat of a process have run out a number of terms ago; a term is :data:`LONG`."""
    at = await _time(client) - terms * LONG.total_seconds()
    await client.zadd(KEYS.beats, {name: int(at * 1000)})


async def _kept(client: Redis) -> list[bytes]:
    """The processes of which beats and configurations are kept."""
    beats = cast("list[bytes]", await client.zrange(KEYS.beats, 0, -1))
    assert sorted(beats) == sorted(cast("list[bytes]", await client.hkeys(KEYS.configurations)))
    return sorted(beats)


async def _gone(client: Redis, name: str) -> bool:
    return name not in await members_now(client, KEYS)


async def _time(client: Redis) -> float:
    seconds, microseconds = await client.time()
    return float(seconds) + microseconds / 1e6


async def test_nothing_is_left_of_those_that_left(client: Redis) -> None:
    """Law: after all processes have left, only the version remains."""
    for name in "ab":
        await member(client, name).beat(POLL, MemberList())
    for name in "ab":
        await member(client, name).leave(MemberList())
    assert await all_keys(client) == {KEYS.version.encode()}
    assert await members_now(client, KEYS) == {}


async def test_each_says_what_its_configuration_is(client: Redis) -> None:
    """Law: a beat publishes the process's configuration; a change moves the version; it leaves with the process."""
    said = MemberConfiguration(("acme/x",), {"acme": "1"}, {"w": "2"})
    one = Members(client, KEYS, name="one", ttl=LONG, clock=store_clock(), configuration=said)
    first = await one.beat(POLL, MemberList())
    assert first.configurations == {"one": said}
    changed = Members(client, KEYS, name="one", ttl=LONG, clock=store_clock(), configuration=MemberConfiguration(()))
    second = await changed.beat(POLL, first)
    assert (second.version != first.version, second.configurations) == (True, {"one": MemberConfiguration(())})
    await client.hdel(KEYS.configurations, "one")  # as a version without configurations leaves it
    assert (await members_seen(client, KEYS)).configurations == {"one": UNSAID}
    await client.hset(KEYS.configurations, "gone", b"{}")  # left behind by a version that did not clear it
    assert (await one.leave(MemberList())).configurations == {}
    assert not await client.exists(KEYS.configurations)
