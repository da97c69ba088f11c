"""Laws of :mod:`poller.daemon.poll_role`: a process polls a feed only while it holds the feed's lease."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from poller.daemon.cluster.leases import WorkLease
from poller.daemon.health import Readiness, StoreMonitor
from poller.daemon.poll_role import FeedLease, SourceGroup, leases_of
from poller.daemon.round_runner import PolledFeed, RoundObserver
from poller.daemon.schedule import PollTiming, Schedule
from poller.resources import resource_of
from poller.source.feed import Feed, RoundMode, RoundResult
from poller.source.paging import ListQuery
from poller.store.keys import FeedKeys
from poller.telemetry.metrics import process_metrics
from tests.harness.clock import StubClock
from tests.harness.waiting import patience, turns, until

SELDOM = PollTiming(timedelta(hours=1), None, timedelta())


def now() -> datetime:
    return datetime.now(UTC)


@dataclass
class Rounds:
    """The feeds of one source; logs rounds and releases in order, and holds each round until the test sets ``on``."""

    log: list[str] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    rested: list[str] = field(default_factory=list)
    ok: bool = True
    mode: RoundMode = RoundMode.DELTA
    second_look: timedelta | None = None
    recheck: timedelta | None = None
    fault: Exception | None = None
    on: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def polled(self, name: str, *, discover: bool = False) -> PolledFeed:
        feed = Feed(f"s/{name}", resource_of(name, path="/x"), ListQuery(), "e", "t", discover=discover)

        async def round_(*, due: object, began: Callable[[], None]) -> RoundResult:
            began()
            self.say(f"{name} begins")
            await self.on.wait()
            if self.fault is not None:
                raise self.fault
            self.say(f"{name} ends")
            given: dict[str, Any] = {"ok": self.ok, "second_look": self.second_look, "recheck": self.recheck}
            return RoundResult(feed=feed.id, mode=self.mode, pages=1, **given)

        async def release() -> None:
            self.say(f"{name} let go")

        lease = SimpleNamespace(key=FeedKeys.of("p", feed.id).lease, token="me/1")  # noqa: S106 -- of a test
        forget = partial(self.forgotten.append, name)
        store = SimpleNamespace(lease=lease, held=True, release=release, forget_idle_start=forget)
        api: Any = SimpleNamespace(share=lambda part: self.log.append(str(part)))
        return cast("PolledFeed", SimpleNamespace(feed=feed, store=store, api=api, timing=SELDOM, round=round_))

    def say(self, what: str) -> None:
        self.log.append(what)
        self.changed.set()

    async def said(self, *what: str) -> None:
        async with patience(f"{what}, not {self.log}"):
            while [one for one in self.log if " " in one] != list(what):
                self.changed.clear()
                await self.changed.wait()

    def rests(self, lot: WorkLease) -> None:
        self.rested.append(lot.name)


@pytest.fixture
def rounds() -> Rounds:
    return Rounds()


@pytest.fixture
async def schedule() -> AsyncIterator[Schedule]:
    schedule = Schedule(clock=StubClock(now=now))
    schedule.start()
    yield schedule
    await schedule.drain()


def lots(rounds: Rounds, schedule: Schedule) -> list[FeedLease]:
    """Leases of a feed and of a follower, whose substreams come from that feed."""
    clock = asyncio.get_running_loop().time
    watch = StoreMonitor("warn", clock=StubClock(now=now, monotonic=clock))
    feeds = [rounds.polled("follower", discover=True), rounds.polled("one")]
    return leases_of(feeds, schedule, rounds.rests, RoundObserver(watch, Readiness(watch)), StubClock(now=now))


async def test_polled_at_once_when_the_lease_is_ours(rounds: Rounds, schedule: Schedule) -> None:
    """A feed is polled as soon as its lease is held, with a share of the source's limits, and is busy meanwhile."""
    _, one = lots(rounds, schedule)
    one.start()
    await rounds.said("one begins")
    assert [one.busy, rounds.rested] == [True, []]
    rounds.on.set()
    await rounds.said("one begins", "one ends")
    await until(lambda: not one.busy, "the round's end to be noticed")
    assert (rounds.log[0], rounds.rested) == ("1/2", ["s/one"])
    await one.hand_back()
    assert rounds.log[-1] == "one let go"
    assert schedule.next_round("s/one") is None


async def test_a_fault_of_the_program_is_a_failure_of_the_feed(rounds: Rounds, schedule: Schedule) -> None:
    """Law: readiness names the feed, its next round comes, and the feeds that wait for its first one begin."""
    clock = asyncio.get_running_loop().time
    readiness = Readiness(StoreMonitor("warn", clock=StubClock(now=now, monotonic=clock)))
    observer = RoundObserver(StoreMonitor("warn", clock=StubClock(now=now, monotonic=clock)), readiness)
    feeds = [rounds.polled("follower", discover=True), rounds.polled("one")]
    follower, one = leases_of(feeds, schedule, rounds.rests, observer, StubClock(now=now))
    rounds.fault = KeyError("unforeseen")
    rounds.on.set()
    one.start()
    follower.start()
    await rounds.said("one begins", "follower begins")
    await until(lambda: not one.busy and not follower.busy, "the rounds' ends to be noticed")
    report = await readiness.report()
    assert report.failing == dict.fromkeys(("s/follower", "s/one"), "a fault of the program, see its log: KeyError")
    assert schedule.next_round("s/one") is not None


@pytest.mark.parametrize(
    ("asks", "ok", "gets"), [("second_look", True, True), ("second_look", False, False), ("recheck", False, True)]
)
async def test_what_is_held_back_is_looked_at_before_the_next_turn(
    rounds: Rounds, schedule: Schedule, asks: str, *, ok: bool, gets: bool
) -> None:
    """Law: a full reading that has to follow comes; that for held versions only if this round has succeeded."""
    setattr(rounds, asks, timedelta(minutes=1))
    rounds.ok = ok
    _, one = lots(rounds, schedule)
    one.start()
    rounds.on.set()
    await rounds.said("one begins", "one ends")
    await until(lambda: not one.busy, "the round's end to be noticed")

    def soon() -> bool:
        due = schedule.next_round("s/one")
        return due is not None and due - now() <= timedelta(minutes=1)

    if gets:
        await until(soon, "the reading to be scheduled")
    await turns()
    assert soon() is gets
    await one.hand_back()


async def test_no_round_begins_after_it_was_handed_back(rounds: Rounds, schedule: Schedule) -> None:
    """No round starts after the lease was handed back, since a round acquires the lease again."""
    _, one = lots(rounds, schedule)
    rounds.on.set()
    one.start()
    await turns()  # the round is scheduled and due now
    await one.hand_back()
    assert await one._round() is None
    await rounds.said("one let go")


async def test_a_follower_begins_after_the_first_rounds_that_are_here(rounds: Rounds, schedule: Schedule) -> None:
    """A follower waits for the first round of the feed that it depends on, even if its own lease was acquired first."""
    follower, one = lots(rounds, schedule)
    follower.start()
    one.start()
    await rounds.said("one begins")
    rounds.on.set()
    await rounds.said("one begins", "one ends", "follower begins", "follower ends")


async def test_a_follower_does_not_wait_for_what_is_lost(rounds: Rounds, schedule: Schedule) -> None:
    """A feed whose lease is lost before its first round does not hold up its follower."""
    follower, one = lots(rounds, schedule)
    follower.start()
    one.start()
    await rounds.said("one begins")
    one.lost()
    await rounds.said("one begins", "follower begins")
    assert schedule.next_round("s/one") is None


async def test_a_round_is_broken_off_in_order(rounds: Rounds, schedule: Schedule) -> None:
    """``broken_off`` returns after the running round has ended; the feed stays scheduled and can be polled again."""
    _, one = lots(rounds, schedule)
    assert not await one.broken_off()
    one.start()
    await rounds.said("one begins")
    assert await one.broken_off()
    await until(lambda: not one.busy, "the round's end to be noticed")
    rounds.on.set()
    one.poll_soon()
    await rounds.said("one begins", "one begins", "one ends")


async def test_what_an_operator_wants_is_looked_for(rounds: Rounds, schedule: Schedule) -> None:
    """After a command the next round asks the store how it starts: the feed may be paused."""
    _, one = lots(rounds, schedule)
    rounds.on.set()
    one.start()
    await rounds.said("one begins", "one ends")
    assert not rounds.forgotten
    await one.broken_off()
    one.poll_soon()
    await rounds.said("one begins", "one ends", "one begins", "one ends")
    assert rounds.forgotten == ["one"]
    one.poll_soon()
    await rounds.said(*["one begins", "one ends"] * 3)
    assert rounds.forgotten == ["one", "one"]


async def test_who_waits_is_told_of_the_next_end(rounds: Rounds, schedule: Schedule) -> None:
    """``round_ended`` gives the result of the running round; a round asked for meanwhile follows it."""
    _, one = lots(rounds, schedule)
    one.start()
    await rounds.said("one begins")
    awaited = one.round_ended()
    one.poll_soon()
    rounds.on.set()
    async with patience("a round"):
        assert (await awaited).ok
    await rounds.said("one begins", "one ends", "one begins", "one ends")


async def test_the_last_full_reading_is_known_after_a_delta(rounds: Rounds, schedule: Schedule) -> None:
    """``full_round_since`` gives the reading that carried a command out, though a delta has followed it."""
    _, one = lots(rounds, schedule)
    before, rounds.mode = now(), RoundMode.RESYNC
    rounds.on.set()
    one.start()
    await until(lambda: one.full_round_since(before), "the end of the full reading")
    rounds.mode = RoundMode.DELTA
    one.poll_soon()
    await rounds.said("one begins", "one ends", "one begins", "one ends")
    await until(lambda: not one.busy, "the end of the delta")
    found = one.full_round_since(before)
    assert found is not None
    assert found.mode is RoundMode.RESYNC
    assert one.full_round_since(now()) is None


async def test_who_waits_for_a_feed_that_goes_is_told(rounds: Rounds, schedule: Schedule) -> None:
    """Handing back the lease cancels what ``round_ended`` returned."""
    _, one = lots(rounds, schedule)
    one.start()
    await rounds.said("one begins")
    awaited = one.round_ended()
    rounds.on.set()
    await one.hand_back()
    assert awaited.cancelled()


async def test_what_was_asked_while_a_round_is_broken_off_is_not_forgotten(rounds: Rounds, schedule: Schedule) -> None:
    """A round that is asked for while another is being cancelled runs afterwards."""
    _, one = lots(rounds, schedule)
    one.start()
    await rounds.said("one begins")
    breaking = asyncio.create_task(one.broken_off())
    await turns()
    assert one.busy
    one.poll_soon()
    assert await breaking
    rounds.on.set()
    await rounds.said("one begins", "one begins", "one ends")


async def test_a_round_that_ends_after_its_feed_went_is_told_to_nobody(rounds: Rounds, schedule: Schedule) -> None:
    """A round that ends after its lease was lost reports nothing: neither a store failure nor a metric."""
    watch = StoreMonitor("warn", clock=StubClock(now=now))
    readiness, polled = Readiness(watch), rounds.polled("one")
    ending = polled.round

    async def failing(*, due: Any, began: Any) -> RoundResult:
        await ending(due=due, began=began)
        return RoundResult(feed="s/one", mode=RoundMode.DELTA, ok=False, error="away", away=True)

    polled.round = failing  # type: ignore[assignment,method-assign]  # a stub
    (one,) = leases_of([polled], schedule, rounds.rests, RoundObserver(watch, readiness), StubClock(now=now))
    one.start()
    await rounds.said("one begins")
    one.lost()
    rounds.on.set()
    await until(lambda: not one.busy, "the round's end to be noticed")
    await turns()
    assert not watch.away
    assert "s/one" not in "".join(process_metrics().rounds.blocks(openmetrics=False))


async def test_a_round_that_was_broken_off_is_followed_by_another(rounds: Rounds, schedule: Schedule) -> None:
    """A cancelled round is followed by another, so that an earlier store failure of the feed does not stay reported."""
    watch = StoreMonitor("warn", clock=StubClock(now=now))
    (one,) = leases_of(
        [rounds.polled("one")], schedule, rounds.rests, RoundObserver(watch, Readiness(watch)), StubClock(now=now)
    )
    watch.failed("s/one", "away")
    one.start()
    await rounds.said("one begins")
    assert await one.broken_off()
    rounds.on.set()
    await rounds.said("one begins", "one begins", "one ends")
    await until(lambda: not watch._failing, "the store to be reported as available")


# Laws of :class:`poller.daemon.poll_role.SourceGroup`.


def feed(name: str, *, discover: bool = False) -> Feed:
    return Feed(f"s/{name}", resource_of(name, path="/x"), ListQuery(), "e", "t", discover=discover)


ONE, OTHER, FOLLOWER = feed("one"), feed("other"), feed("follower", discover=True)
NOTHING = RoundResult(feed=FOLLOWER.id, mode=RoundMode.BASELINE, ok=True)


@pytest.fixture
def parts() -> list[Fraction]:
    return []


@pytest.fixture
def siblings(parts: list[Fraction]) -> SourceGroup:
    return SourceGroup(4, parts.append)


def test_a_follower_begins_when_those_that_are_here_were_polled(siblings: SourceGroup) -> None:
    """A follower starts after the other feeds were polled, whatever the order of adding; the others start at once."""
    for one in (FOLLOWER, ONE, OTHER):
        siblings.add(one)
    assert [siblings.begins_at_once(one) for one in (FOLLOWER, ONE, OTHER)] == [False, True, True]
    assert siblings.polled(ONE) == ()
    assert siblings.polled(OTHER) == (FOLLOWER.id,)
    assert siblings.polled(OTHER) == ()
    assert siblings.begins_at_once(FOLLOWER)


def test_nobody_waits_for_what_is_polled_elsewhere(siblings: SourceGroup) -> None:
    """A follower waits neither for a feed that was never added nor for one removed before its first round."""
    siblings.add(FOLLOWER)
    assert siblings.begins_at_once(FOLLOWER)
    siblings.add(ONE)
    assert not siblings.begins_at_once(FOLLOWER)
    assert siblings.remove(ONE) == (FOLLOWER.id,)
    assert siblings.begins_at_once(FOLLOWER)


def test_the_part_of_the_source_that_is_used_here(siblings: SourceGroup, parts: list[Fraction]) -> None:
    """The share of a source's limits is that of the feeds polled here; removing the last feed does not change it."""
    for one in (ONE, OTHER):
        siblings.add(one)
    siblings.remove(ONE)
    siblings.remove(OTHER)
    assert parts == [Fraction(1, 4), Fraction(1, 2), Fraction(1, 4)]


def test_a_round_that_found_no_qualification_is_repeated_soon(siblings: SourceGroup) -> None:
    """A follower that found no qualification is polled again with growing waits, for a limited number of times."""
    siblings.add(FOLLOWER)
    waits = [siblings.again(FOLLOWER, NOTHING) for _ in range(14)]
    assert waits[:3] == [timedelta(seconds=1), timedelta(seconds=2), timedelta(seconds=4)]
    assert waits[-1] is None
    for changes in ({"pages": 1}, {"ok": False}, {"mode": RoundMode.FULL}):
        siblings.add(FOLLOWER)
        assert siblings.again(FOLLOWER, msgspec.structs.replace(NOTHING, **changes)) is None
    assert siblings.again(ONE, NOTHING) is None
