"""Laws of :mod:`poller.daemon.schedule`: rounds start when they are due, one at a time, and stop in order."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from poller.daemon.schedule import PollTiming, Schedule, _Interval, _StoreCron, shared_moment
from tests.chaos.faults.clock import faked_by, missing, set_clock
from tests.harness.clock import StubClock
from tests.harness.waiting import turns, until, within

OFTEN = PollTiming(timedelta(milliseconds=20), None, timedelta())
SELDOM = PollTiming(timedelta(hours=1), None, timedelta())
DAILY = PollTiming(None, "30 4 * * *", timedelta())
HOURS = timedelta(hours=7)


def now() -> datetime:
    return datetime.now(UTC)


def every(interval: float | None, jitter: float) -> PollTiming:
    """These seconds; with cron where there is no interval."""
    if interval is None:
        return PollTiming(None, "30 4 * * *", timedelta(seconds=jitter))
    return PollTiming(timedelta(seconds=interval), None, timedelta(seconds=jitter))


@pytest.fixture
async def schedule() -> AsyncIterator[Schedule]:
    schedule = Schedule(clock=StubClock(now=now))
    yield schedule
    await schedule.drain()


class Rounds:
    """Counts rounds, and how many of them ran at once."""

    def __init__(self, *, until: int = 1, answer: timedelta | None = None) -> None:
        self.begun = 0
        self.together = 0
        self.most_together = 0
        self.enough = asyncio.Event()
        self._until = until
        self._answer = answer

    async def __call__(self) -> timedelta | None:
        self.begun += 1
        self.together += 1
        self.most_together = max(self.most_together, self.together)
        ticked = asyncio.Event()
        asyncio.get_running_loop().call_later(0.05, ticked.set)  # longer than the interval
        await ticked.wait()
        self.together -= 1
        if self.begun >= self._until:
            self.enough.set()
        return self._answer


async def test_the_first_round_comes_at_once_and_others_follow(schedule: Schedule) -> None:
    """Law: the first round starts at once, without waiting for the interval, and others follow."""
    rounds = Rounds(until=3)
    schedule.add("a", rounds, OFTEN)
    schedule.start()
    await within(rounds.enough.wait(), 5)


async def test_rounds_of_one_feed_never_overlap(schedule: Schedule) -> None:
    """Law: a feed's next round does not start while a round longer than the interval is running."""
    rounds = Rounds(until=4)
    schedule.add("a", rounds, OFTEN)
    schedule.start()
    await within(rounds.enough.wait(), 5)
    assert rounds.most_together == 1


async def test_a_slow_feed_does_not_hold_up_another(schedule: Schedule) -> None:
    """Law: a feed whose round hangs does not delay another feed."""
    stuck, rounds = asyncio.Event(), Rounds(until=3)

    async def hangs() -> None:
        await stuck.wait()

    schedule.add("slow", hangs, OFTEN)
    schedule.add("quick", rounds, OFTEN)
    schedule.start()
    await within(rounds.enough.wait(), 5)


async def test_a_feed_may_wait_to_be_hastened(schedule: Schedule) -> None:
    """Law: without ``at_once`` the first round waits for its turn; hastening makes a round earlier, never later."""
    rounds = Rounds()
    schedule.add("a", rounds, SELDOM, at_once=False)
    schedule.start()
    due = schedule.next_round("a")
    assert due is not None
    assert due > now() + timedelta(minutes=50)
    schedule.hasten("a", now() + timedelta(days=1))
    assert schedule.next_round("a") == due
    schedule.hasten("a", now())
    await within(rounds.enough.wait(), 5)


async def test_regular_work_comes_with_the_rounds() -> None:
    """Law: what is regular in this process comes at the moments at which a round is due, however late the round is."""
    clock, rounds = StubClock(now=now), Rounds()
    schedule = Schedule(clock=clock)
    schedule.add("a", rounds, SELDOM, at_once=False)
    schedule.start()
    due = now() - timedelta(seconds=0.7)
    schedule.hasten("a", due)
    await within(rounds.enough.wait(), 5)
    await schedule.drain()
    ends = (now() - due).total_seconds() + clock.aligned(1.0)
    assert abs(ends - round(ends)) < 0.05


async def test_a_round_may_ask_for_the_next_one_sooner(schedule: Schedule) -> None:
    """Law: a round may ask for an earlier next round, as one that was skipped for another process's lease does."""
    rounds = Rounds(until=2, answer=timedelta(milliseconds=10))
    schedule.add("a", rounds, SELDOM)
    schedule.start()
    await within(rounds.enough.wait(), 5)


async def test_draining_stops_what_runs_and_starts_nothing_more() -> None:
    """Law: draining cancels the running round and waits until its cleanup is done."""
    schedule = Schedule(clock=StubClock(now=now))
    running, finished = asyncio.Event(), []

    async def round_() -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            await turns(20)
            finished.append("commit")

    schedule.add("a", round_, OFTEN)
    schedule.start()
    await within(running.wait(), 5)
    await schedule.drain()
    assert finished == ["commit"]


@pytest.mark.parametrize("after", range(6))
async def test_nothing_begins_after_draining(after: int) -> None:
    """Law: no round starts after draining, even one that APScheduler was about to start."""
    schedule, begun = Schedule(clock=StubClock(now=now)), []

    async def round_() -> None:
        begun.append(1)
        await asyncio.Event().wait()

    schedule.add("a", round_, OFTEN)
    schedule.start()
    await turns(after)  # the drain may come at any of these steps
    await schedule.drain()
    before = len(begun)
    await turns(10)
    assert len(begun) == before


async def test_at_once_is_not_lost(schedule: Schedule) -> None:
    """Law: a round that asks for another one at once gets it, although it still counts as running when it asks."""
    rounds = Rounds(until=2, answer=timedelta(0))
    schedule.add("a", rounds, SELDOM)
    schedule.start()
    await within(rounds.enough.wait(), 5)


async def test_a_long_round_is_no_warning(schedule: Schedule, caplog: pytest.LogCaptureFixture) -> None:
    """Law: intervals that pass during a long round are not warned of; other warnings of APScheduler are kept."""
    rounds = Rounds(until=3)
    schedule.add("a", rounds, OFTEN)
    schedule.start()
    await within(rounds.enough.wait(), 5)
    logging.getLogger("apscheduler.scheduler").warning("something else")
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == ["something else"]


async def test_a_failing_round_does_not_end_the_feed(schedule: Schedule, caplog: pytest.LogCaptureFixture) -> None:
    """Law: an unexpected error in a round is logged, and the next round starts."""
    seen, again = [], asyncio.Event()

    async def round_() -> None:
        seen.append(1)
        if len(seen) == 1:
            raise RuntimeError("nobody foresaw this")
        again.set()

    schedule.add("a", round_, OFTEN)
    schedule.start()
    await within(again.wait(), 5)
    assert "nobody foresaw this" in caplog.text


def test_cron_is_read_in_utc() -> None:
    """Law: five-field cron expressions mean UTC, whatever the machine's time zone."""
    trigger = PollTiming(None, "30 4 * * *", timedelta()).trigger()
    due = trigger.get_next_fire_time(None, datetime(2026, 1, 1, tzinfo=UTC))
    assert due == datetime(2026, 1, 1, 4, 30, tzinfo=UTC)


def test_cron_counts_weekdays_as_cron_does() -> None:
    """Law: the schedule counts weekdays of a cron expression as the configuration does: 1 is Monday."""
    due = (
        PollTiming(None, "0 6 * * 1", timedelta()).trigger().get_next_fire_time(None, datetime(2026, 3, 1, tzinfo=UTC))
    )
    assert due == datetime(2026, 3, 2, 6, tzinfo=UTC)


def test_neither_interval_nor_cron_is_refused() -> None:
    """Law: a timing with neither interval nor cron expression is an error."""
    with pytest.raises(ValueError, match="interval or by cron"):
        PollTiming(None, None, timedelta()).trigger()


class Clocks:
    """A store clock and a wall clock that the test sets. APScheduler sees the machine's own."""

    def __init__(self) -> None:
        self.store = timedelta()
        self.wall = timedelta()
        self._looks = 0

    def schedule(self) -> Schedule:
        return Schedule(
            clock=StubClock(now=lambda: now() + self.store),
            look=timedelta(milliseconds=10),
            wall=StubClock(now=self._shown),
        )

    async def seen(self) -> None:
        """Wait until the schedule has read the clocks as they are set now."""
        enough = self._looks + 4  # a check reads the wall clock twice; one may be running
        await until(lambda: self._looks >= enough, "the clocks to be read")

    def _shown(self) -> datetime:
        self._looks += 1
        return now() + self.wall


@asynccontextmanager
async def started(schedule: Schedule) -> AsyncIterator[Schedule]:
    schedule.start()
    try:
        yield schedule
    finally:
        await schedule.drain()


async def test_an_interval_stays_one_though_the_wall_clock_jumps() -> None:
    """Law: a wall clock that was an hour ahead and is set back does not delay a feed by that hour."""
    clocks, rounds = Clocks(), Rounds()
    clocks.wall = timedelta(hours=1)
    schedule = clocks.schedule()
    schedule.add("a", rounds, OFTEN)  # due now by the wall clock, which is an hour ahead
    async with started(schedule):
        await clocks.seen()
        clocks.wall = timedelta()
        await within(rounds.enough.wait(), 5)


async def test_an_interval_stays_one_though_all_clocks_go_back_in_small_steps() -> None:
    """Law: steps back that are each too small to count, of the store's clock and the wall clock, delay no feed."""
    clocks = Clocks()
    async with started(clocks.schedule()) as schedule:
        schedule.add("a", Rounds(), SELDOM, at_once=False)
        while clocks.wall > timedelta(seconds=-4):
            clocks.wall = clocks.store = clocks.wall - timedelta(milliseconds=45)
            await clocks.seen()
        due = schedule.next_round("a")
        assert due is not None
        assert SELDOM.interval is not None
        assert due - (now() + clocks.store) < SELDOM.interval + timedelta(milliseconds=300)


@pytest.mark.parametrize("off", [-HOURS, HOURS], ids=["behind", "ahead"])
async def test_cron_goes_by_the_clock_of_the_store(off: timedelta) -> None:
    """Law: a cron feed's rounds follow the store's clock, however far the wall clock is from it."""
    clocks = Clocks()
    clocks.store = off
    async with started(clocks.schedule()) as schedule:
        schedule.add("a", Rounds(), DAILY, at_once=False)
        due = schedule.next_round("a")
        assert due is not None
        assert (due.hour, due.minute, round(due.second + due.microsecond / 1e6) % 60) == (4, 30, 0)
        assert timedelta() < due - (now() + off) <= timedelta(days=1, seconds=1)


async def test_a_store_whose_clock_is_set_back_keeps_no_cron_feed_waiting() -> None:
    """Law: after the store's clock is set back, a cron feed is due at its next time by the new clock."""
    clocks = Clocks()
    clocks.store = timedelta(days=30)
    async with started(clocks.schedule()) as schedule:
        schedule.add("a", Rounds(), DAILY, at_once=False)
        clocks.store = timedelta()
        await clocks.seen()
        due = schedule.next_round("a")
        assert due is not None
        assert now() < due <= now() + timedelta(days=1, seconds=1)


async def test_a_feed_that_is_taken_again_does_not_wait_for_a_clock_that_was_ahead() -> None:
    """Law: a feed that is added again starts its first round at once, even if the store's clock was ahead before."""
    clocks, rounds = Clocks(), Rounds()
    clocks.store = timedelta(days=400)
    async with started(clocks.schedule()) as schedule:
        schedule.add("a", Rounds(), DAILY)
        schedule.remove("a")
        clocks.store = timedelta()
        await clocks.seen()
        schedule.add("a", rounds, DAILY)
        await within(rounds.enough.wait(), 5)


async def test_a_feed_that_comes_as_the_clock_is_set_hides_that_from_no_other() -> None:
    """Law: a cron feed follows a change of the store's clock even if adding another feed read the new clock first."""
    clocks = Clocks()
    clocks.store = -HOURS
    soon = (now() + timedelta(hours=2)).replace(second=0, microsecond=0)  # by a clock that is behind, later than that
    timing = PollTiming(None, f"{soon.minute} {soon.hour} * * *", timedelta())
    async with started(clocks.schedule()) as schedule:
        schedule.add("a", Rounds(), timing, at_once=False)
        clocks.store = timedelta()
        schedule.add("b", Rounds(), SELDOM, at_once=False)
        await clocks.seen()
        due = schedule.next_round("a")
        assert due is not None
        assert abs(due - soon) < timedelta(seconds=1)


_JUMPING = """
import asyncio, sys
from datetime import timedelta
from pathlib import Path

from poller.clock import Clock
from poller.daemon.schedule import PollTiming, Schedule
from tests.chaos.faults.clock import set_clock

OFTEN, SELDOM = (PollTiming(timedelta(seconds=seconds), None, timedelta()) for seconds in (0.1, 3600))


async def main(clock, jump):
    rounds = asyncio.Semaphore(0)
    schedule = Schedule(Clock(), look=timedelta(seconds=3))

    async def polled():
        rounds.release()

    async def more():
        for _ in range(2):
            await rounds.acquire()

    schedule.add("often", polled, OFTEN)
    if jump == "start":  # the scheduler reads the clock for the first time
        set_clock(clock, "-1h")
        schedule.start()
        for _ in range(5):
            await asyncio.sleep(0)
    else:
        schedule.start()
        await more()
        set_clock(clock, jump)
    if jump.startswith("+"):
        await more()
    elif jump.startswith("-"):  # nothing is due now, but the scheduler reads the clock
        schedule.add("seldom", polled, SELDOM, at_once=False)
        for _ in range(5):
            await asyncio.sleep(0)
    set_clock(clock, "+0")
    await more()
    await more()
    await schedule.drain()
    print("polled", flush=True)


asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


@pytest.mark.parametrize("jump", ["-1h", "+1h", "start"])
def test_a_clock_that_is_set_and_put_right_between_two_checks_delays_no_feed(tmp_path: Path, jump: str) -> None:
    """Law: a jump of the wall clock that only the scheduler sees, and none of the checks, delays no round."""
    if reason := missing():
        pytest.skip(reason)
    set_clock(tmp_path / "clock", "+0")
    environ = {name: text.format(directory=tmp_path) for name, text in faked_by("clock").items()}
    ran = subprocess.run(
        [sys.executable, "-c", _JUMPING, tmp_path / "clock", jump],
        env=os.environ | environ,
        stdout=subprocess.PIPE,
        timeout=30,
        check=False,
    )
    assert ran.stdout == b"polled\n"


async def test_a_wall_clock_that_jumps_ahead_keeps_nothing_busy() -> None:
    """Law: intervals that a clock jump of years has skipped become one due round and are not counted one by one."""
    schedule, rounds = Schedule(clock=StubClock(now=now)), Rounds()
    schedule.add("a", rounds, OFTEN, at_once=False)
    async with started(schedule):
        schedule.hasten("a", now() - timedelta(days=36_500))  # as if the clock had just jumped
        await within(rounds.enough.wait(), 5)
        due = schedule.next_round("a")
        assert due is not None
        assert due > now() - timedelta(seconds=1)


async def test_one_moment_of_cron_comes_once_though_clocks_come_nearer() -> None:
    """Law: a store's clock that falls behind a little does not repeat a cron time that has had its round."""
    ahead = timedelta()
    trigger = _StoreCron(DAILY.trigger(), lambda: ahead)
    due = trigger.get_next_fire_time(None, datetime(2026, 1, 1, tzinfo=UTC))
    assert due == datetime(2026, 1, 1, 4, 30, tzinfo=UTC)
    ahead = timedelta(milliseconds=-200)
    assert trigger.get_next_fire_time(due, due) == datetime(2026, 1, 2, 4, 30, tzinfo=UTC) - ahead


async def test_a_clock_that_runs_as_it_should_changes_nothing() -> None:
    """Law: checking the clock does not move a round as long as the clock was not set."""
    schedule = Schedule(clock=StubClock(now=now), look=timedelta(milliseconds=1))
    schedule.add("a", Rounds(), SELDOM, at_once=False)
    schedule.start()
    try:
        due = schedule.next_round("a")
        looked = asyncio.Event()
        asyncio.get_running_loop().call_later(0.05, looked.set)
        await looked.wait()
        assert schedule.next_round("a") == due
    finally:
        await schedule.drain()


@pytest.mark.parametrize("jitter", [timedelta(), timedelta(seconds=6)])
async def test_rounds_of_about_the_same_time_begin_together(schedule: Schedule, jitter: timedelta) -> None:
    """Law: rounds are due at shared moments, the first one of a feed and those that follow."""
    timing, rounds = PollTiming(timedelta(seconds=60), None, jitter), [Rounds() for _ in range(20)]
    for number, one in enumerate(rounds):
        schedule.add(str(number), one, timing)
    first = {schedule.next_round(str(number)) for number in range(20)}
    assert len(first) <= 4  # a hundred in a second
    schedule.start()
    for one in rounds:
        await within(one.enough.wait(), 5)
    for due in (*first, *(schedule.next_round(str(number)) for number in range(20))):
        assert due is not None
        about = due + timedelta(milliseconds=1)  # the clocks of store and process are compared at two moments
        assert about - shared_moment(about, timing) < timedelta(milliseconds=2)


@pytest.mark.parametrize(
    ("interval", "jitter", "shared"),
    [
        (60.0, 6.0, 750),
        (5.0, 0.5, 750),
        (5.0, 0.0, 750),
        (7.25, 0.0, 750),
        (5.0, 0.49, 900),  # in steps of quarters, it would mostly have no effect
        (4.9, 0.5, 900),
        (60.1, 6.0, 900),
        (1.0, 0.1, 900),
        (0.25, 0.0, 900),
        (None, 0.0, 900),
    ],
)
def test_rounds_share_quarters_where_their_interval_is_long_and_tenths_else(
    interval: float | None, jitter: float, shared: int
) -> None:
    """Law: a shared moment is a whole quarter of a second from five seconds on, else a tenth; never a later moment."""
    timing = every(interval, jitter)
    at = datetime(2026, 3, 1, 12, 0, 7, 999_999, tzinfo=UTC)
    assert shared_moment(at, timing) == at.replace(microsecond=shared * 1000)
    assert shared_moment(at.replace(microsecond=0), timing) == at.replace(microsecond=0)


@pytest.mark.parametrize("jitter", [0.2, 0.3, 0.6])
def test_a_small_jitter_has_an_effect(jitter: float) -> None:
    """Law: rounds with a jitter of two tenths and more are not all due at the same moment."""
    timing, interval = every(5.0, jitter), timedelta(seconds=5)
    trigger = _Interval(timing, interval)
    at = shared_moment(now(), timing)
    dues = {trigger.get_next_fire_time(at, at) for _ in range(100)}
    assert len(dues) > 1
    assert all(due and interval <= due - at < interval + timing.jitter for due in dues)


@pytest.mark.parametrize("milliseconds", [100, 250, 1050, 4_900, 5_000, 5_050, 7_250, 60_000, 60_100])
def test_a_shared_moment_shortens_no_interval(milliseconds: int) -> None:
    """Law: rounds follow each other at their interval, also if that is no number of tenths or quarters."""
    interval = timedelta(milliseconds=milliseconds)
    timing = PollTiming(interval, None, timedelta())
    trigger = _Interval(timing, interval)
    at = shared_moment(now(), timing)
    for _ in range(10):
        due = trigger.get_next_fire_time(at, at)
        assert due is not None
        assert abs(due - at - interval) < timedelta(microseconds=10)
        at = due
