"""Laws of :mod:`poller.store.clock`: processes share the store's clock, whatever their own wall clocks show."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from redis.asyncio import Redis

from poller.redis.client import commands
from poller.store.clock import StoreClock
from poller.store.keys import MemberKeys
from poller.store.members import MemberList, Members
from tests.harness.clock import StubClock

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
WRONG = datetime(2040, 1, 1, tzinfo=UTC)
SLACK = timedelta(seconds=5)


class Lived:
    """A monotonic clock that the test moves."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


async def shown(client: Redis, key: str) -> datetime:
    """The server's time, read by a script."""
    milliseconds = await client.eval(
        "local t = redis.call('TIME') return t[1] * 1000 + math.floor(t[2] / 1000)", 1, key
    )
    return EPOCH + timedelta(milliseconds=int(milliseconds))


async def test_it_shows_the_time_of_the_store(any_store: str) -> None:
    """Law: the process's wall clock counts only until the store's first reply; then the store's clock counts."""
    async with commands(any_store) as client:
        key = MemberKeys.of("poller").version
        clock = StoreClock(key, process=StubClock(now=lambda: WRONG))
        assert clock.now() == WRONG
        await clock.ask(client)
        assert abs(clock.now() - await shown(client, key)) < SLACK
        assert EPOCH + timedelta(milliseconds=clock.now_ms()) <= clock.now()


async def test_each_look_at_the_members_brings_the_time(any_store: str) -> None:
    """Law: each read of the member list brings the store's time, whether the list has changed or not."""
    keys = MemberKeys.of("poller")
    async with commands(any_store) as client:
        clock = StoreClock(process=StubClock(now=lambda: WRONG))
        members = Members(client, keys, name="one", ttl=timedelta(seconds=30), shebang="#!lua\n", clock=clock)
        seen = await members.beat(["poll"], MemberList())
        assert abs(clock.now() - await shown(client, keys.version)) < SLACK
        clock.learn(0, asked=clock.asked())  # as if the store's clock showed 1970
        assert clock.now() < EPOCH + SLACK
        assert await members.read(seen) is seen
        assert abs(clock.now() - await shown(client, keys.version)) < SLACK


def test_time_passes_by_the_monotonic_clock() -> None:
    """Law: between two replies, time passes by the monotonic clock, even if the wall clock is set."""
    wall, lived = [WRONG], Lived()
    clock = StoreClock(process=StubClock(now=lambda: wall[0], monotonic=lived))
    clock.learn(1_000_000, asked=lived())
    wall[0] = EPOCH
    lived.seconds += 60
    assert abs(clock.now() - (EPOCH + timedelta(seconds=1060))) < timedelta(milliseconds=2)


@pytest.mark.parametrize("late", [0.0, 0.5, 30.0], ids=["at once", "slow", "very slow"])
def test_a_slow_reply_makes_nothing_worse(late: float) -> None:
    """Law: a reply that agrees with the known time changes nothing, however slow it is."""
    lived = Lived()
    clock = StoreClock(process=StubClock(monotonic=lived))
    clock.learn(1_000_000, asked=lived())
    known, asked = clock.now(), lived()
    lived.seconds += late
    clock.learn(1_000_000, asked=asked)  # the server read its clock when the request was sent; only the reply was slow
    assert abs(clock.now() - known - timedelta(seconds=late)) < timedelta(milliseconds=1)


@pytest.mark.parametrize("days", [-30, 30])
def test_a_clock_that_was_set_is_believed_at_once(days: int) -> None:
    """Law: when the store's clock jumps, the process follows it with the first reply."""
    lived = Lived()
    clock = StoreClock(process=StubClock(monotonic=lived))
    clock.learn(10_000_000_000, asked=lived())
    clock.learn(10_000_000_000 + days * 86_400_000, asked=lived())
    then = EPOCH + timedelta(seconds=10_000_000 + days * 86_400)
    assert abs(clock.now() - then) < timedelta(milliseconds=2)
