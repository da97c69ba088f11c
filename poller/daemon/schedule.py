"""Schedule of rounds: one APScheduler job a feed, never two rounds of one together.

Nothing else knows APScheduler, but for the meaning of cron expressions (:mod:`poller.config.cron`). Its shutdown
cancels what runs without waiting, so the running rounds are kept here as well: :meth:`Schedule.drain` stops them first,
and a round that is stopped finishes its commit.

A round that is late because the process was busy or asleep runs once, not as often as it was missed. One that comes due
while the one before still runs is left out, which is how it is meant to be and no reason for a warning.

APScheduler goes by the wall clock of this process, which may be wrong and may jump. So moments are translated here:
all that goes in and comes out is by the store's clock, and a cron expression means that one, in every process. An
interval is time that passes by the monotonic clock. Whatever clock is set, no round is due later than its interval, or
than the next moment of its expression; one that is set forward brings one round early at most.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
import structlog
from apscheduler.job import Job
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.interval import IntervalTrigger

from poller.clock import Clock
from poller.config.cron import trigger_of
from poller.config.sources import FeedSettings
from poller.lifecycle import ended

# With thousands of feeds the first rounds are spread out: this many a second.
_STARTS_PER_SECOND: Final = 100.0
SOONEST: Final = timedelta(milliseconds=100)
"""To APScheduler a job still runs for a moment after its round has ended; what comes due meanwhile is left out."""

_LOOK: Final = timedelta(seconds=1)
_NEAR: Final = timedelta(milliseconds=50)  # clocks that differ by less are taken to show the same
_JUMP: Final = timedelta(milliseconds=500)

_log = structlog.get_logger("poller.schedule")


class PollTiming(msgspec.Struct, frozen=True):
    """When a feed is polled: every ``interval``, or by a five-field ``cron`` expression in UTC; ``jitter`` around it.

    One of ``interval`` and ``cron`` is None.
    """

    interval: timedelta | None
    cron: str | None
    jitter: timedelta

    def trigger(self) -> BaseTrigger:
        """The APScheduler trigger.

        Raises:
            ValueError: neither interval nor cron, or no cron expression.
        """
        if self.cron is not None:
            trigger = trigger_of(self.cron)
            trigger.jitter = self.jitter.total_seconds() or None
            return trigger
        if self.interval is None:
            raise ValueError("a feed is polled by interval or by cron; neither is given")
        seconds = self.interval.total_seconds()
        return IntervalTrigger(seconds=seconds, jitter=self.jitter.total_seconds() or None, timezone=UTC)


def timing_of(feed: FeedSettings) -> PollTiming:
    """When this feed is polled."""
    return PollTiming(feed.interval, feed.cron, feed.jitter)


Round = Callable[[], Awaitable[timedelta | None]]
"""Runs a round; may answer after how long the next one is worth trying, where that is sooner than its turn."""


class _Interval(BaseTrigger):  # type: ignore[misc] # APScheduler has no types
    """An interval of which the turns that were missed are passed over in one step.

    APScheduler would count them one by one: a wall clock that jumps a month ahead would keep it busy for minutes.
    """

    def __init__(self, inner: BaseTrigger, interval: timedelta) -> None:
        self._inner = inner
        self._interval = interval

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime | None:
        if previous_fire_time is not None and now > previous_fire_time:
            previous_fire_time += (now - previous_fire_time) // self._interval * self._interval
        found: datetime | None = self._inner.get_next_fire_time(previous_fire_time, now)
        return found


class _StoreCron(BaseTrigger):  # type: ignore[misc] # APScheduler has no types
    """A cron expression by the store's clock, for a scheduler that goes by this process's wall clock."""

    def __init__(self, inner: BaseTrigger, ahead: Callable[[], timedelta]) -> None:
        self._inner = inner
        self._ahead = ahead

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime | None:
        ahead = self._ahead()
        moment = now + ahead
        if previous_fire_time is not None:  # clocks that come nearer must not bring the same moment twice
            moment = max(moment, min(previous_fire_time, now) + ahead + _JUMP)
        found: datetime | None = self._inner.get_next_fire_time(None, moment)
        return found and found - ahead


class Schedule:
    """The jobs of one process. Used within one event loop."""

    def __init__(self, clock: Clock, *, wall: Clock | None = None, look: timedelta = _LOOK) -> None:
        """Take the clocks.

        Args:
            clock: the store's.
            wall: the clock of this process, which APScheduler goes by.
            look: how often to look whether a clock was set.
        """
        self._look = look
        self._clock = clock
        self._wall = wall or Clock()
        self._ahead = timedelta()  # of the store's clock over the wall clock
        self._lived = self._wall.now() - timedelta(seconds=clock.monotonic())
        self._looking: asyncio.Task[None] | None = None
        self._timings: dict[str, PollTiming] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._draining = False
        self._turns_from = -math.inf  # by the monotonic clock
        self._was_set = False
        logging.getLogger("apscheduler.scheduler").addFilter(_worth_a_line)
        self._scheduler = AsyncIOScheduler(
            timezone=UTC, job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1}
        )

    def add(self, name: str, round_: Round, timing: PollTiming, *, at_once: bool = True) -> None:
        """Poll ``name`` from now on; its first round comes immediately, or in its first turn, or by :meth:`hasten`."""
        self._was_set = self._compare() or self._was_set
        start = {"next_run_time": self._first_turn() - self._ahead} if at_once else {}
        trigger = timing.trigger()
        if timing.cron is not None:
            trigger = _StoreCron(trigger, lambda: self._ahead)
        elif timing.interval is not None:
            trigger = _Interval(trigger, timing.interval)
        self._timings[name] = timing
        self._scheduler.add_job(self._run, trigger, args=(name, round_), id=name, **start)

    def remove(self, name: str) -> None:
        """Poll ``name`` no more, if it is polled at all; a round that runs goes on."""
        self._timings.pop(name, None)
        if self._scheduler.get_job(name) is not None:
            self._scheduler.remove_job(name)

    def start(self) -> None:
        """Begin."""
        self._scheduler.start()
        self._looking = asyncio.create_task(self._keep_time(), name="clock")

    def hasten(self, name: str, moment: datetime) -> None:
        """Let the next round of ``name`` come at this moment, unless its turn is sooner."""
        job, due = self._scheduler.get_job(name), moment - self._ahead
        if job is not None and job.next_run_time is not None and due < job.next_run_time:
            job.modify(next_run_time=due)

    def next_round(self, name: str) -> datetime | None:
        """When the next round of ``name`` is due."""
        job = self._scheduler.get_job(name)
        return job.next_run_time + self._ahead if job is not None and job.next_run_time else None

    def _first_turn(self) -> datetime:
        """Now, or soon after the one before: many first rounds are spread out."""
        now = self._clock.monotonic()
        self._turns_from = max(self._turns_from + 1 / _STARTS_PER_SECOND, now)
        return self._clock.now() + timedelta(seconds=self._turns_from - now)

    async def drain(self) -> None:
        """Start no more rounds, stop those that run, and return when they have stopped."""
        self._draining = True
        if self._looking is not None:
            await ended(self._looking)
        if self._scheduler.running:
            self._scheduler.pause()
        await ended(*self._running)
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)

    async def _keep_time(self) -> None:
        """Look again and again whether a clock was set, for as long as there are rounds."""
        while True:
            await self._clock.sleep(self._look.total_seconds())
            self._straighten()

    def _compare(self) -> bool:
        """Learn how far the store's clock is ahead; whether that is another span than it was."""
        ahead = self._clock.now() - self._wall.now()
        if abs(ahead - self._ahead) < _NEAR:
            return False
        self._ahead = ahead
        return True

    def _straighten(self) -> None:
        """Put right what is due by a clock that was set; and who sleeps by an old clock is woken."""
        wall = self._wall.now()
        lived = wall - timedelta(seconds=self._clock.monotonic())
        jumped, self._lived = lived - self._lived, lived
        changed = self._compare() or self._was_set or abs(jumped) > _JUMP
        self._was_set = False
        if jumped < -_JUMP:  # all stay as far away as they were
            for job in self._scheduler.get_jobs():
                job.modify(next_run_time=job.next_run_time + jumped)
            _log.warning("the wall clock was set back", seconds=round(-jumped.total_seconds()))
        late = [
            (job, latest)
            for job in self._scheduler.get_jobs()
            if (latest := self._latest(job, wall, changed=changed)) is not None and job.next_run_time > latest
        ]
        for number, (job, latest) in enumerate(late):
            due = latest if self._timings[job.id].cron else wall + (latest - wall) * (number / len(late))
            job.modify(next_run_time=due)
        self._scheduler.wakeup()

    def _latest(self, job: Job, wall: datetime, *, changed: bool) -> datetime | None:
        """When a job is due at the latest, by the wall clock; None where that is as it was.

        A cron expression is looked at only where a clock was set, for that takes longer.
        """
        timing = self._timings.get(job.id)
        if timing is None:
            return None
        if timing.interval is not None:
            return wall + timing.interval + timing.jitter
        due: datetime | None = job.trigger.get_next_fire_time(None, wall) if changed else None
        return due and due + timing.jitter

    async def _run(self, name: str, round_: Round) -> None:
        if not self._draining:  # what was handed over before would have no task that waits for its end
            await self._watched(name, round_)

    async def _watched(self, name: str, round_: Round) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a round runs in a task")
        self._running.add(task)
        try:
            sooner = await round_()
        except asyncio.CancelledError:
            if self._draining:
                return  # to APScheduler a cancelled job is a failed one
            raise
        finally:
            self._running.discard(task)
        if sooner is not None:
            self.hasten(name, self._clock.now() + max(sooner, SOONEST))


def _worth_a_line(record: logging.LogRecord) -> bool:
    return "maximum number of running instances" not in str(record.msg)
