"""Laws of :mod:`poller.delivery.owning`: delivered while the lease is ours, and again after whatever went wrong."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from poller.delivery import owning
from poller.errors import Fenced, StoreUnavailable
from poller.store.feed import HeldElsewhere


class Script:
    """A lease and a run, each turn of which goes as it is told; the last turn waits for the stop."""

    feed = "acme/a"

    def __init__(self, *turns: HeldElsewhere | Exception | None) -> None:
        self.turns = list(turns)
        self.stop = asyncio.Event()
        self.log: list[str] = []
        self.held = False

    async def take(self) -> HeldElsewhere | None:
        turn = self.turns[0] if self.turns else None
        self.log.append("take")
        if isinstance(turn, HeldElsewhere):
            self.turns.pop(0)
            return turn
        self.held = True
        return None

    async def run(self) -> None:
        self.log.append("run")
        turn = self.turns.pop(0) if self.turns else None
        if isinstance(turn, Exception):
            raise turn
        self.stop.set()

    async def renew(self) -> bool:
        return self.held

    async def release(self) -> None:
        self.log.append("release")
        self.held = False


class Watch:
    """What was told of the store, in order."""

    away = False

    def __init__(self) -> None:
        self.told: list[str] = []

    def failed(self, who: str, text: str) -> None:
        self.told.append(f"{who}: {text}")

    def worked(self, who: str) -> None:
        self.told.append(f"{who} worked")


@pytest.mark.parametrize(
    ("fault", "wait"),
    [
        (Fenced("lost"), 2.0),
        (StoreUnavailable("away"), 1.0),
        (RuntimeError("a fault of ours"), 5.0),
        (HeldElsewhere(timedelta(0)), 0.02),
        (HeldElsewhere(timedelta(minutes=1)), 1.0),
    ],
)
async def test_after_whatever_happened_it_is_taken_up_again(fault: Exception | HeldElsewhere, wait: float) -> None:
    """A lost lease, a store that is away, a fault of ours; never without a pause; the lease is let go in the end."""
    script = Script(fault)
    waits: list[float] = []

    async def pause(_: asyncio.Event, seconds: float) -> None:
        waits.append(seconds)

    await owning.own(script, script, subscription="s", stop=script.stop, watch=Watch(), pause=pause)
    assert script.log.count("take") == 2
    assert script.log[-2:] == ["run", "release"]
    assert waits == [wait]


async def test_a_store_that_is_away_is_told_to_who_tells_it_once_for_all() -> None:
    """By the name of the pair, and that it works again; in the end there is nobody of that name who could wait."""
    script, watch = Script(StoreUnavailable("away")), Watch()

    async def pause(_: asyncio.Event, __: float) -> None:
        pass

    await owning.own(script, script, subscription="s", stop=script.stop, watch=watch, pause=pause)
    assert watch.told == ["s acme/a worked", "s acme/a: away", "s acme/a worked", "s acme/a worked"]


async def test_told_to_stop_it_waits_no_longer() -> None:
    """Neither for another's lease nor for its own next look."""
    script = Script()
    script.stop.set()
    await owning.own(script, script, subscription="s", stop=script.stop, watch=Watch())
    assert script.log == []


async def test_cancelled_it_lets_the_lease_go() -> None:
    """So that another process can go on at once."""
    script = Script()
    running = asyncio.Event()

    async def run() -> None:
        running.set()
        await asyncio.Event().wait()

    script.run = run  # type: ignore[method-assign] # a run without an end
    task = asyncio.create_task(owning.own(script, script, subscription="s", stop=script.stop, watch=Watch()))
    await running.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert script.log[-1] == "release"
