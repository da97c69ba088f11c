"""One round for every feed: how it starts, waits, and ends early."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import cast

import pytest
from structlog.testing import capture_logs

from poller import app as once
from poller.clock import Clock
from poller.config.load import load
from poller.config.settings import Settings
from poller.daemon.round_runner import PolledFeed
from poller.errors import ConfigurationError
from poller.resources import RESOURCES
from poller.source.feed import RoundMode, RoundResult
from tests.harness.clock import FakeClock
from tests.harness.waiting import turns
from tests.servers import running

DONE = RoundResult(feed="a/b", mode=RoundMode.DELTA, ok=True)


class Lease:
    """A held lease that records its release."""

    held = True

    def __init__(self, ledger: list[str]) -> None:
        self.lease = self
        self._ledger = ledger

    async def renew(self) -> bool:
        return True

    async def release(self) -> None:
        self._ledger.append("lease released")


def polled(round_: Callable[[], Awaitable[RoundResult]], lease: Lease | None = None) -> PolledFeed:
    feed = SimpleNamespace(resource=RESOURCES["contractTypes"])
    return cast("PolledFeed", SimpleNamespace(feed=feed, store=lease or Lease([]), round=round_))


async def test_a_reader_that_goes_ends_the_other_rounds_first() -> None:
    """If reporting fails, running rounds are stopped before leases are released, and the error is raised."""
    ledger: list[str] = []
    running_ = asyncio.Event()

    async def quick(*, whole: bool = False) -> RoundResult:
        await running_.wait()
        return DONE

    async def slow(*, whole: bool = False) -> RoundResult:
        running_.set()
        try:
            await asyncio.Event().wait()
        finally:
            await turns(20)
            ledger.append("round ended")
        return DONE

    def report(_: RoundResult) -> None:
        raise BrokenPipeError

    feeds = (polled(quick, Lease(ledger)), polled(slow, Lease(ledger)))
    with pytest.raises(BrokenPipeError):
        await once._rounds(feeds, timedelta(seconds=10), report, Clock())
    assert ledger == ["round ended", "lease released", "lease released"]


@pytest.mark.parametrize(("wait", "pause"), [(0.0, 0.1), (0.001, 0.1), (0.2, 0.2), (9.0, 0.25)])
async def test_waiting_for_a_lease_never_spins(wait: float, pause: float) -> None:
    """A lease about to expire is checked again after a tenth of a second, a long one after a quarter."""
    results = [RoundResult(feed="a/b", mode=RoundMode.SKIPPED, ok=True, wait=timedelta(seconds=wait)), DONE]
    clock = FakeClock()

    async def round_(*, whole: bool = False) -> RoundResult:
        return results.pop(0)

    assert await once._when_free(polled(round_), clock) is DONE
    assert clock.slept == [pause]


@pytest.fixture(scope="module")
def forgetful() -> Iterator[str]:
    """A server without persistence."""
    with TemporaryDirectory(prefix="po-") as short, running("valkey", Path(short), appendfsync="no") as server:
        yield server.url


def settings(directory: Path, url: str, durability: str) -> Settings:
    file = directory / "poller.toml"
    text = f'[redis]\nurl = "{url}"\ndurability = "{durability}"\n[[sources]]\nname = "a"\n'
    file.write_text(f'{text}base_url = "http://127.0.0.1:1"\n[[sources.feeds]]\nresource = "contractTypes"\n', "utf-8")
    return load(file, {})


async def ran(settings: Settings) -> bool:
    """One round of no feed."""
    return await once.once(settings, {}, (), clock=Clock(), report=lambda _: None)


async def test_durability_that_is_required(tmp_path: Path, forgetful: str) -> None:
    """If durability is required, no round runs on a store without it."""
    with pytest.raises(ConfigurationError, match='durability = "require" is not met: append-only file off'):
        await ran(settings(tmp_path, forgetful, "require"))


@pytest.mark.parametrize(("durability", "said"), [("warn", ["aof"]), ("ignore", [])])
async def test_durability_that_is_wished_for(tmp_path: Path, forgetful: str, durability: str, said: list[str]) -> None:
    """With "warn" each missing durability setting is logged once, with "ignore" none; the round runs."""
    with capture_logs() as logs:
        assert await ran(settings(tmp_path, forgetful, durability))
    assert [line["check"] for line in logs if line["log_level"] == "warning"] == said
