"""Laws of :mod:`poller.daemon.health`: a problem is logged when it begins and when it ends, and not in between."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from poller.clock import Clock
from poller.daemon.health import FRESH, START, StoreMonitor
from poller.redis.client import commands, connect
from poller.redis.health import Durability, check_store
from tests.harness.clock import StubClock
from tests.harness.waiting import until
from tests.servers import running
from tests.telemetry.series import grown

REPLY_TIMEOUT = timedelta(seconds=1)


def now() -> datetime:
    return datetime.now(UTC)


class Hours:
    """A clock that the test advances; pauses wait for the test and record how long they would have lasted."""

    def __init__(self) -> None:
        self.at = 100.0
        self.pauses: list[float] = []
        self.go_on = asyncio.Event()

    def clock(self) -> float:
        return self.at

    async def pause(self, _: asyncio.Event, seconds: float) -> None:
        """One pause each time that :attr:`go_on` is set."""
        self.pauses.append(seconds)
        await self.go_on.wait()
        self.go_on.clear()
        self.at += seconds

    async def paused(self, count: int) -> float:
        """Wait for the pause of this number; return how long it would have lasted."""
        await until(lambda: len(self.pauses) >= count, "a pause", every=0.0)
        return self.pauses[count - 1]


@asynccontextmanager
async def watched(url: str, hours: Hours, durability: Durability = "warn") -> AsyncIterator[StoreMonitor]:
    watch = StoreMonitor(durability, clock=StubClock(now=now, monotonic=hours.clock, wait=hours.pause))
    async with connect(url, reply_timeout=REPLY_TIMEOUT) as client:
        watch.attach(client, await check_store(client, process=Clock()))
        task = asyncio.create_task(watch.run())
        try:
            yield watch
        finally:
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()


def test_many_who_fail_are_told_once() -> None:
    """Several failing feeds give one warning; its reason is one feed's error and the number of the others."""
    watch = StoreMonitor("warn", clock=StubClock(now=now, monotonic=Hours().clock))
    with capture_logs() as logs:
        for feed in ("acme/a", "acme/b", "acme/c", "acme/a"):
            watch.failed(feed, f"{feed} away")
    assert [line["event"] for line in logs] == ["redis unavailable"]
    assert [reason.text for reason in watch.reasons()] == ["acme/a away (and 2 more)"]
    for feed in ("acme/a", "acme/b"):
        watch.worked(feed)
    assert [reason.text for reason in watch.reasons()] == ["acme/c away"]


def test_before_the_store_has_answered_that_is_the_reason() -> None:
    """A process is not ready before the store has answered; the reason becomes the store's error once it has one."""
    watch = StoreMonitor("warn", clock=StubClock(now=now, monotonic=Hours().clock))
    assert [reason.text for reason in watch.reasons()] == ["has not answered yet"]
    watch.failed(START, "LOADING")
    assert [reason.text for reason in watch.reasons()] == ["LOADING"]


async def test_a_finding_is_told_when_it_comes_and_when_it_goes(tmp_path: Path) -> None:
    """A store check is logged once when it fails and once when it passes; a failing check is repeated sooner."""
    hours = Hours()
    with running("valkey", tmp_path) as server, capture_logs() as logs:
        async with commands(server.url) as admin, watched(server.url, hours) as watch:
            assert await hours.paused(1) == 60
            for policy, pause in (("allkeys-lru", 10), ("allkeys-lru", 10), ("noeviction", 60), ("noeviction", 60)):
                await admin.config_set("maxmemory-policy", policy)
                hours.go_on.set()
                assert await hours.paused(len(hours.pauses) + 1) == pause
                assert [one.name for one in watch.reasons()] == (["eviction"] if pause == 10 else [])
    assert [(line["log_level"], line["check"]) for line in logs] == [("error", "eviction"), ("info", "eviction")]


@pytest.mark.parametrize(("durability", "reasons"), [("warn", []), ("ignore", []), ("require", ["aof"])])
async def test_durability_decides_what_is_a_reason(durability: Durability, reasons: list[str], tmp_path: Path) -> None:
    """A store that loses its required durability makes the process unready but does not stop it."""
    hours = Hours()
    with running("valkey", tmp_path) as server:
        async with commands(server.url) as admin, watched(server.url, hours, durability) as watch:
            await hours.paused(1)
            await admin.config_set("appendonly", "no")
            hours.go_on.set()
            await hours.paused(2)
            assert [one.name for one in watch.reasons()] == reasons


async def test_whoever_asks_hears_of_a_store_that_went(tmp_path: Path) -> None:
    """A readiness request finds a hanging store within a second; loss and return of the store are logged once each."""
    hours = Hours()
    with running("valkey", tmp_path) as server, capture_logs() as logs:
        async with watched(server.url, hours) as watch:
            await hours.paused(1)
            assert await watch.fresh() == []
            os.kill(server.pid, signal.SIGSTOP)
            assert await watch.fresh() == []  # the last answer is fresh enough
            hours.at += FRESH
            assert [one.text for one in await watch.fresh()] == ["does not answer within 0.8 s"]

            async def away() -> bool:
                await watch.fresh()
                return watch.away

            await until(away, "the check to fail")
            assert "Timeout" in watch.reasons()[0].text
            os.kill(server.pid, signal.SIGCONT)
            for _ in range(4):
                hours.go_on.set()
                await hours.paused(len(hours.pauses) + 1)
            assert watch.reasons() == []
    assert [line["event"] for line in logs] == ["redis unavailable", "redis available again"]


async def test_after_the_end_nothing_is_asked_any_more(tmp_path: Path) -> None:
    """A monitor that has ended asks the store nothing more and logs nothing."""
    hours = Hours()
    with running("valkey", tmp_path) as server, capture_logs() as logs:
        async with watched(server.url, hours) as watch:
            await hours.paused(1)
        hours.at += FRESH
        assert [one.text for one in await watch.fresh()] == ["has not answered yet"]
    assert logs == []


def test_one_that_slept_blames_nobody() -> None:
    """A failure right after the process slept is ignored; a failure a moment later is logged and counted."""
    hours = Hours()
    watch = StoreMonitor("warn", clock=StubClock(now=now, monotonic=hours.clock))
    before = grown("poller_store_failures_total")
    with capture_logs() as logs:
        hours.at += 60
        watch.overslept()
        watch.failed("acme/a", "Timeout reading")
        assert ([one.text for one in watch.reasons()], watch.away, logs) == (["has not answered yet"], False, [])
        hours.at += 1
        watch.failed("acme/a", "Timeout reading")
    assert [line["event"] for line in logs] == ["redis unavailable"]
    assert watch.away
    assert grown("poller_store_failures_total") == before + 1
