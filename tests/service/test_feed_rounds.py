"""Laws of :mod:`poller.service.feed_rounds`: a feed is polled here while its lease is ours, and not a moment longer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from poller.service.after_round import AfterRound
from poller.service.feed_rounds import FeedLot, lots_of
from poller.service.lots import Lot
from poller.service.polling import Polled
from poller.service.readiness import Readiness
from poller.service.schedule import Schedule, Timing
from poller.service.watching import StoreWatch
from poller.source.feed import Feed, Mode
from poller.source.paging import Query
from poller.source.resources import resource_of
from poller.source.result import RoundResult
from poller.store.keys import FeedKeys
from tests.harness.waiting import patience, turns

SELDOM = Timing(timedelta(hours=1), None, timedelta())


def now() -> datetime:
    return datetime.now(UTC)


@dataclass
class Rounds:
    """The feeds of one source: what was polled and let go, in order; rounds wait until they are let on."""

    log: list[str] = field(default_factory=list)
    rested: list[str] = field(default_factory=list)
    on: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def polled(self, name: str, *, discover: bool = False) -> Polled:
        feed = Feed(f"s/{name}", resource_of(name, path="/x"), Query(), "e", "t", discover=discover)

        async def round_() -> RoundResult:
            self.say(f"{name} begins")
            await self.on.wait()
            self.say(f"{name} ends")
            return RoundResult(feed=feed.id, mode=Mode.DELTA, ok=True, pages=1)

        async def release() -> None:
            self.say(f"{name} let go")

        store = SimpleNamespace(keys=FeedKeys.of("p", feed.id), nonce="me/1", held=True, release=release)
        api: Any = SimpleNamespace(share=lambda part: self.log.append(str(part)))
        return cast("Polled", SimpleNamespace(feed=feed, store=store, api=api, timing=SELDOM, round=round_))

    def say(self, what: str) -> None:
        self.log.append(what)
        self.changed.set()

    async def said(self, *what: str) -> None:
        async with patience(f"{what}, not {self.log}"):
            while [one for one in self.log if " " in one] != list(what):
                self.changed.clear()
                await self.changed.wait()

    def rests(self, lot: Lot) -> None:
        self.rested.append(lot.name)


@pytest.fixture
def rounds() -> Rounds:
    return Rounds()


@pytest.fixture
async def schedule() -> AsyncIterator[Schedule]:
    schedule = Schedule(now=now)
    schedule.start()
    yield schedule
    await schedule.drain()


def lots(rounds: Rounds, schedule: Schedule) -> list[FeedLot]:
    """A feed, and one that learns from it."""
    clock = asyncio.get_running_loop().time
    watch = StoreWatch("warn", now=now, clock=clock)
    feeds = [rounds.polled("follower", discover=True), rounds.polled("one")]
    return lots_of(feeds, schedule, rounds.rests, AfterRound(watch, Readiness(watch)), now)


async def test_polled_at_once_when_the_lease_is_ours(rounds: Rounds, schedule: Schedule) -> None:
    """Law: busy while its round runs, which is told at its end; with its part of the source's limits."""
    _, one = lots(rounds, schedule)
    one.begin()
    await rounds.said("one begins")
    assert [one.busy, rounds.rested] == [True, []]
    rounds.on.set()
    await rounds.said("one begins", "one ends")
    assert [one.busy] == [False]
    assert (rounds.log[0], rounds.rested) == ("1/2", ["s/one"])
    await one.end()
    assert rounds.log[-1] == "one let go"
    assert schedule.next_round("s/one") is None


async def test_no_round_begins_after_it_was_handed_back(rounds: Rounds, schedule: Schedule) -> None:
    """Law: whatever was about to start: a round takes the lease, and so would take it back."""
    _, one = lots(rounds, schedule)
    rounds.on.set()
    one.begin()
    await turns()  # it is in the schedule now, and due
    await one.end()
    assert await one._round() is None
    await rounds.said("one let go")


async def test_a_follower_begins_after_the_first_rounds_that_are_here(rounds: Rounds, schedule: Schedule) -> None:
    """Law: though its lease was taken first; and at once where what it waited for goes elsewhere."""
    follower, one = lots(rounds, schedule)
    follower.begin()
    one.begin()
    await rounds.said("one begins")
    rounds.on.set()
    await rounds.said("one begins", "one ends", "follower begins", "follower ends")


async def test_a_follower_does_not_wait_for_what_is_lost(rounds: Rounds, schedule: Schedule) -> None:
    """Law: a feed whose lease is lost before its first round holds up nobody here."""
    follower, one = lots(rounds, schedule)
    follower.begin()
    one.begin()
    await rounds.said("one begins")
    one.lost()
    await rounds.said("one begins", "follower begins")
    assert schedule.next_round("s/one") is None
