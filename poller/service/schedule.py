"""When rounds run: one APScheduler job for each feed, never two rounds of one feed at once.

Nothing else knows APScheduler, but for the meaning of cron expressions (:mod:`poller.config.cron`). Its shutdown
cancels what runs without waiting, so the running rounds are kept here as well: :meth:`Schedule.drain` stops them first,
and a round that is told to stop finishes its commit.

A round that is late because the process was busy or asleep runs once, not as often as it was missed. One that comes due
while the one before still runs is left out, which is how it is meant to be and no reason for a warning.

APScheduler goes by the wall clock. Whoever sets that, an interval stays what it is: no round is due later than that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
import structlog
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.interval import IntervalTrigger

from poller.config.cron import trigger_of
from poller.stopping import ended

# With thousands of feeds the first rounds are spread out, so many a second.
_STARTS_PER_SECOND: Final = 100.0
SOONEST: Final = timedelta(milliseconds=100)
"""To APScheduler a job still runs for a moment after its round has ended; what comes due meanwhile is left out."""

_LOOK: Final = timedelta(seconds=1)

_log = structlog.get_logger("poller.schedule")


class Timing(msgspec.Struct, frozen=True):
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


Round = Callable[[], Awaitable[timedelta | None]]
"""Runs a round; may answer after how long the next one is worth trying, where that is sooner than its turn."""


class Schedule:
    """The jobs of one process. Used within one event loop."""

    def __init__(self, *, now: Callable[[], datetime], look: timedelta = _LOOK) -> None:
        """Take the wall clock, UTC, and how often to look whether it was set."""
        self._now = now
        self._look = look
        self._looking: asyncio.Task[None] | None = None
        self._longest: dict[str, timedelta] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._draining = False
        self._turns_from = datetime.min.replace(tzinfo=UTC)
        logging.getLogger("apscheduler.scheduler").addFilter(_worth_a_line)
        self._scheduler = AsyncIOScheduler(
            timezone=UTC, job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1}
        )

    def add(self, name: str, round_: Round, timing: Timing, *, at_once: bool = True) -> None:
        """Poll ``name`` from now on; its first round comes at once, or in its first turn, or by :meth:`hasten`."""
        start = {"next_run_time": self._first_turn()} if at_once else {}
        if timing.interval is not None:
            self._longest[name] = timing.interval + timing.jitter
        self._scheduler.add_job(self._run, timing.trigger(), args=(name, round_), id=name, **start)

    def remove(self, name: str) -> None:
        """Poll ``name`` no more, if it is polled at all; a round that runs goes on."""
        self._longest.pop(name, None)
        if self._scheduler.get_job(name) is not None:
            self._scheduler.remove_job(name)

    def start(self) -> None:
        """Begin."""
        self._scheduler.start()
        self._looking = asyncio.create_task(self._keep_time(), name="clock")

    def hasten(self, name: str, moment: datetime) -> None:
        """Let the next round of ``name`` come at this moment, unless its turn is sooner."""
        job = self._scheduler.get_job(name)
        if job is not None and job.next_run_time is not None and moment < job.next_run_time:
            job.modify(next_run_time=moment)

    def next_round(self, name: str) -> datetime | None:
        """When the next round of ``name`` is due."""
        job = self._scheduler.get_job(name)
        return job.next_run_time if job is not None else None

    def _first_turn(self) -> datetime:
        """Now, or soon after the one before: many first rounds are spread out."""
        self._turns_from = max(self._turns_from + timedelta(seconds=1 / _STARTS_PER_SECOND), self._now())
        return self._turns_from

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
        """Look again and again whether the wall clock has jumped, for as long as there are rounds."""
        while True:
            await asyncio.sleep(self._look.total_seconds())
            self._straighten()

    def _straighten(self) -> None:
        """What is due later than it can be is due within its interval; and who sleeps by an old clock is woken."""
        now, jobs = self._now(), self._scheduler.get_jobs()
        late = [job for job in jobs if job.id in self._longest and job.next_run_time > now + self._longest[job.id]]
        for number, job in enumerate(late):
            job.modify(next_run_time=now + self._longest[job.id] * (number / len(late)))
        if late:
            _log.warning("the wall clock was set back", feeds=len(late))
        self._scheduler.wakeup()

    async def _run(self, name: str, round_: Round) -> None:
        if not self._draining:  # what was handed over before would have nobody who waits for its end
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
            self.hasten(name, self._now() + max(sooner, SOONEST))


def _worth_a_line(record: logging.LogRecord) -> bool:
    return "maximum number of running instances" not in str(record.msg)
