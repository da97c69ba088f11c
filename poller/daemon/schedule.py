"""Schedule of rounds: one APScheduler job per feed, never two rounds of a feed at the same time.

Apart from :mod:`poller.config.cron`, only this module uses APScheduler. APScheduler's shutdown cancels running jobs
without waiting, so the running rounds are kept here as well: :meth:`Schedule.drain` stops them first, and a stopped
round finishes its commit.

Rounds are due at whole quarters or tenths of a second (:func:`shared_moment`), so those that are due at about the same
time begin together: a process that wakes up for several does a third less than one that wakes up for each.

A round that is late because the process was busy or suspended runs once, however many turns were missed. A round that
comes due while the previous one still runs is left out, without a warning.

APScheduler uses the wall clock of this process, which may be wrong and may jump. So this module translates: all moments
in its interface are of the store's clock, and cron expressions mean the store's clock in every process. Intervals are
measured by the monotonic clock. Even if a clock is set back, no round is later than its interval or the next moment of
its cron expression; a clock that is set forward makes at most one round early.
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
from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.interval import IntervalTrigger

from poller.clock import Clock
from poller.config.cron import trigger_of
from poller.config.sources import FeedSettings
from poller.lifecycle import ended

# The first rounds of thousands of feeds are spread out: this many per second.
_STARTS_PER_SECOND: Final = 100.0
_TENTH, _QUARTER = timedelta(milliseconds=100), timedelta(milliseconds=250)
_LONG: Final = timedelta(seconds=5)  # an interval that an earlier moment changes little, by a twentieth at most
SOONEST: Final = timedelta(milliseconds=100)
"""For APScheduler, a job runs a moment longer than its round; a round that comes due in this moment is left out."""

_LOOK: Final = timedelta(seconds=1)
_NEAR: Final = timedelta(milliseconds=50)  # a smaller difference between clocks is ignored
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
    """The timing of a configured feed."""
    return PollTiming(feed.interval, feed.cron, feed.jitter)


Round = Callable[[], Awaitable[timedelta | None]]
"""Runs a round. Returns the wait before the next one if that is to come before its turn."""


def shared_moment(moment: datetime, timing: PollTiming) -> datetime:
    """The last moment up to this one at which such rounds are due, beside those of other feeds.

    It is a whole quarter of a second for intervals of five seconds and more, else a whole tenth. With 4 000 feeds a
    minute, some 16 rounds share a quarter; they took 1.8 ms of CPU each, where six shared a tenth 2.1 (measured once).
    A jitter of less than two quarters would mostly have no effect; with it, the moment is a whole tenth.
    """
    step = _step(timing) or _TENTH
    return moment - timedelta(microseconds=moment.microsecond) % step


def _step(timing: PollTiming) -> timedelta | None:
    """The time between shared moments; None where they would shorten the interval each time, and with cron."""
    interval = timing.interval
    if interval is None:
        return None
    if interval >= _LONG and not interval % _QUARTER and (not timing.jitter or timing.jitter >= 2 * _QUARTER):
        return _QUARTER
    return None if interval % _TENTH else _TENTH


class _Interval(BaseTrigger):  # type: ignore[misc] # APScheduler has no types
    """An interval that skips missed turns in one step.

    APScheduler would count them one by one: a wall clock that jumps a month ahead would keep it busy for minutes.

    Due times are shared moments, but not where each would shorten the interval.
    """

    def __init__(self, timing: PollTiming, interval: timedelta) -> None:
        self._inner = timing.trigger()
        self._timing = timing
        self._interval = interval
        self._is_shared = _step(timing) is not None

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime | None:
        if previous_fire_time is not None and now > previous_fire_time:
            previous_fire_time += (now - previous_fire_time) // self._interval * self._interval
        found: datetime | None = self._inner.get_next_fire_time(previous_fire_time, now)
        return shared_moment(found, self._timing) if found is not None and self._is_shared else found


class _StoreCron(BaseTrigger):  # type: ignore[misc] # APScheduler has no types
    """A cron expression by the store's clock, for a scheduler that uses this process's wall clock."""

    def __init__(self, inner: BaseTrigger, ahead: Callable[[], timedelta]) -> None:
        self._inner = inner
        self._ahead = ahead

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime | None:
        ahead = self._ahead()
        moment = now + ahead
        if previous_fire_time is not None:  # clocks that approach each other must not produce the same moment twice
            moment = max(moment, min(previous_fire_time, now) + ahead + _JUMP)
        found: datetime | None = self._inner.get_next_fire_time(None, moment)
        return found and found - ahead


class _Jobs(MemoryJobStore):  # type: ignore[misc] # APScheduler has no types
    """The jobs of a scheduler. It notices a wall clock that jumps between two readings of the scheduler.

    What is regular in this process comes with the rounds.

    Attributes:
        jumped: whether one was noticed since the due times were last checked.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.jumped = False
        self._clock = clock
        self._started = self._zero(Clock().now())

    def _zero(self, now: datetime) -> datetime:
        """When the monotonic clock was zero, by the scheduler's."""
        return now - timedelta(seconds=self._clock.monotonic())

    def get_due_jobs(self, now: datetime) -> list[Job]:
        started = self._zero(now)
        if abs(started - self._started) > _JUMP:
            self.jumped = True
        self._started = started
        jobs: list[Job] = super().get_due_jobs(now)
        if jobs:
            late: timedelta = now - jobs[0].next_run_time
            self._clock.align(late.total_seconds())
        return jobs


class Schedule:
    """The jobs of one process. Used within one event loop."""

    def __init__(self, clock: Clock, *, wall: Clock | None = None, look: timedelta = _LOOK) -> None:
        """Begin without feeds.

        Args:
            clock: the store's.
            wall: the clock of this process, which APScheduler uses.
            look: seconds between checks whether a clock was set.
        """
        self._look = look
        self._clock = clock
        self._wall = wall or Clock()
        self._ahead = timedelta()  # of the store's clock over the wall clock
        self._lived = self._compared = self._wall.now() - timedelta(seconds=clock.monotonic())
        self._looking: asyncio.Task[None] | None = None
        self._timings: dict[str, PollTiming] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._draining = False
        self._turns_from = -math.inf  # by the monotonic clock
        self._was_set = False
        logging.getLogger("apscheduler.scheduler").addFilter(_worth_a_line)
        self._jobs = _Jobs(clock)
        self._scheduler = AsyncIOScheduler(
            jobstores={"default": self._jobs},
            timezone=UTC,
            job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
        )

    def add(self, name: str, round_: Round, timing: PollTiming, *, at_once: bool = True) -> None:
        """Poll ``name`` from now on. The first round comes immediately, in its first turn, or by :meth:`hasten`."""
        self._was_set = self._compare() or self._was_set
        start = {"next_run_time": shared_moment(self._first_turn() - self._ahead, timing)} if at_once else {}
        if timing.interval is not None:
            trigger = _Interval(timing, timing.interval)
        else:
            trigger = _StoreCron(timing.trigger(), lambda: self._ahead)
        self._timings[name] = timing
        self._scheduler.add_job(self._run, trigger, args=(name, round_), id=name, **start)

    def remove(self, name: str) -> None:
        """Stop polling ``name``, if it is polled; a running round continues."""
        self._timings.pop(name, None)
        if self._scheduler.get_job(name) is not None:
            self._scheduler.remove_job(name)

    def start(self) -> None:
        """Start the scheduler."""
        self._scheduler.start()
        self._looking = asyncio.create_task(self._keep_time(), name="clock")

    def hasten(self, name: str, moment: datetime) -> None:
        """Move the next round of ``name`` to this moment, unless its turn is sooner."""
        job, due = self._scheduler.get_job(name), moment - self._ahead
        if job is not None and job.next_run_time is not None and due < job.next_run_time:
            job.modify(next_run_time=due)

    def next_round(self, name: str) -> datetime | None:
        """The moment of the next round of ``name``."""
        job = self._scheduler.get_job(name)
        return job.next_run_time + self._ahead if job is not None and job.next_run_time else None

    def _first_turn(self) -> datetime:
        """The moment of a feed's first round; many first rounds are spread out."""
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
        """Check regularly whether a clock was set, as long as there are feeds."""
        while True:
            await self._clock.sleep(self._clock.aligned(self._look.total_seconds()))
            self._straighten()

    def _compare(self) -> bool:
        """Update the lead of the store's clock over the wall clock. True: it has changed."""
        ahead = self._clock.now() - self._wall.now()
        if abs(ahead - self._ahead) < _NEAR:
            return False
        self._ahead = ahead
        return True

    def _straighten(self) -> None:
        """Move all due times after a clock was set, and wake the scheduler, which sleeps by the old time.

        While no clock is set there is nothing to move, and thousands of jobs are left alone. A clock that was set and
        put right again since the last check looks as if it had never been set, but the scheduler may have read it.
        """
        wall = self._wall.now()
        lived = wall - timedelta(seconds=self._clock.monotonic())
        jumped, self._lived = lived - self._lived, lived
        changed = self._compare() or self._was_set or self._jobs.jumped or abs(jumped) > _JUMP
        self._was_set = self._jobs.jumped = False
        if not changed and abs(lived - self._compared) < _NEAR:
            return
        self._compared = lived  # small steps add up
        if jumped < -_JUMP:  # the waits stay as they were
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
        """The latest due time of a job by the wall clock; None: unchanged.

        Cron expressions are evaluated only after a clock was set, because that is slow.
        """
        timing = self._timings.get(job.id)
        if timing is None:
            return None
        if timing.interval is not None:
            return wall + timing.interval + timing.jitter
        due: datetime | None = job.trigger.get_next_fire_time(None, wall) if changed else None
        return due and due + timing.jitter

    async def _run(self, name: str, round_: Round) -> None:
        if not self._draining:  # after `drain`, no task would wait for the end of this round
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
