"""Laws of :mod:`poller.delivery.owning`: delivered while the lease is ours, and again after whatever went wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from poller.delivery.owning import Owned
from poller.errors import Fenced, StoreUnavailable
from poller.stopping import ended
from poller.store.feed import HeldElsewhere
from poller.store.keys import PairKeys
from tests.harness.waiting import patience, turns, until


class Watch:
    """What was told of the store, in order."""

    away = False

    def __init__(self) -> None:
        self.told: list[str] = []

    def failed(self, who: str, text: str) -> None:
        self.told.append(f"{who}: {text}")

    def worked(self, who: str) -> None:
        self.told.append(f"{who} worked")


class Script:
    """A lease and its runs: each turn goes as it is told; after the last one they go on until they are stopped."""

    feed = "acme/a"
    keys = PairKeys.of("p", "acme/a", "s")
    nonce = "me/1"

    def __init__(self, *turns: Exception) -> None:
        self.turns = list(turns)
        self.log: list[str] = []
        self.waits: list[float] = []
        self.held = self.claimed = False
        self.watch = Watch()
        self._stopped = False
        self._changed = asyncio.Event()

    async def take(self) -> HeldElsewhere | None:
        self.held = self.claimed = True
        return None

    async def renew(self) -> bool:
        return self.held

    async def release(self) -> None:
        self._say("release")
        self.held = self.claimed = False

    def ready(self) -> None:
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True
        self._changed.set()

    async def run(self) -> None:
        self._say("run")
        if self.turns:
            turn = self.turns.pop(0)
            self.held = self.held and not isinstance(turn, Fenced)
            raise turn
        await self._until(lambda: self._stopped)
        self._say("end")

    async def pause(self, _: asyncio.Event, seconds: float) -> None:
        self.waits.append(seconds)

    async def said(self, *log: str) -> None:
        async with patience(f"{log}, not {self.log}"):
            await self._until(lambda: self.log == list(log))

    async def _until(self, true: object) -> None:
        while not true():  # type: ignore[operator] # a plain question
            self._changed.clear()
            await self._changed.wait()

    def _say(self, what: str) -> None:
        self.log.append(what)
        self._changed.set()

    def let_go(self) -> None:
        self._say("let go")


@asynccontextmanager
async def owned(script: Script) -> AsyncIterator[Owned]:
    one = Owned(
        script,
        script,
        subscription="s",
        changed=lambda: None,
        let_go=script.let_go,
        watch=script.watch,
        pause=script.pause,
    )
    task = asyncio.create_task(one.run())
    try:
        yield one
        one.stop()
        async with patience("its end"):
            await task
    finally:
        await ended(task)


async def taken(one: Owned) -> None:
    await one.take()
    one.begin()


@pytest.mark.parametrize(("fault", "wait"), [(StoreUnavailable("away"), 1.0), (RuntimeError("a fault of ours"), 5.0)])
async def test_after_whatever_happened_it_is_taken_up_again(fault: Exception, wait: float) -> None:
    """A store that is away, a fault of ours: never without a pause, and the lease is kept, and let go in the end."""
    script = Script(fault)
    async with owned(script) as one:
        await taken(one)
        await script.said("run", "run")
        assert script.held
    assert script.log == ["run", "run", "end", "release", "let go"]
    assert script.waits == [wait]


async def test_a_store_that_is_away_is_told_to_who_tells_it_once_for_all() -> None:
    """By the name of the pair, and that it works again; in the end there is nobody of that name who could wait."""
    script = Script(StoreUnavailable("away"))
    async with owned(script) as one:
        await taken(one)
        await script.said("run", "run")
    assert script.watch.told == ["s acme/a worked", "s acme/a: away", "s acme/a worked", "s acme/a worked"]


async def test_a_lease_that_is_lost_is_waited_for() -> None:
    """After a pause in which it is not to be taken, it is another's until it is taken anew."""
    script = Script(Fenced("lost"))
    async with owned(script) as one:
        await taken(one)
        await script.said("run")
        await until(lambda: not (one.ours or one.busy), "the end of its pause")
        assert not one.held
        await taken(one)
        await script.said("run", "run")
    assert script.waits == [2.0]


async def test_handed_back_when_what_is_in_flight_has_ended() -> None:
    """Law: the lease is let go after the run, never within it; taken once more, it is run once more."""
    script = Script()
    async with owned(script) as one:
        await taken(one)
        await script.said("run")
        await one.end()
        assert script.log == ["run", "end", "release"]
        assert not one.ours
        await taken(one)
        await script.said("run", "end", "release", "run")


async def test_handed_back_before_it_began() -> None:
    """Law: what was begun and ended in one breath is not run."""
    script = Script()
    async with owned(script) as one:
        await taken(one)
        await one.end()
        await turns(5)
        assert script.log == ["release"]
    assert script.log == ["release"]


async def test_told_to_stop_it_waits_no_longer() -> None:
    """Neither for a turn nor for its own pause; what it never had it does not give back."""
    script = Script()
    async with owned(script):
        pass
    assert script.log == []


async def test_cancelled_it_lets_the_lease_go() -> None:
    """So that another process can go on at once; one that may have been granted, too."""
    script = Script()
    one = Owned(script, script, subscription="s", watch=script.watch, changed=lambda: None, let_go=script.let_go)
    task = asyncio.create_task(one.run())
    await taken(one)
    await script.said("run")
    await ended(task)
    assert script.log == ["run", "release", "let go"]
