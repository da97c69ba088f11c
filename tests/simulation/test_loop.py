"""Tests of the loop: virtual time, hosts that stop and die, determinism."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TypeVar

import pytest

from tests.simulation.loop import HOST, Host, HostState, SimulatedLoop, Stuck

T = TypeVar("T")
START = datetime(2026, 1, 1, tzinfo=UTC)


def simulated(main: Callable[[SimulatedLoop], Awaitable[T]], seed: int = 1) -> T:
    """What ``main`` returns on a loop of its own."""
    loop = SimulatedLoop(Random(seed), START)
    try:
        result: T = loop.run_until_complete(main(loop))
    finally:
        loop.close()
    assert loop.failures == []
    return result


def test_sleeping_takes_no_real_time() -> None:
    """Time jumps to the next timer, so a sleep of a year ends at its moment, and others before it."""

    async def main(loop: SimulatedLoop) -> None:
        order: list[str] = []

        async def sleeper(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            order.append(f"{name} at {loop.time():.1f}")

        await asyncio.gather(sleeper("year", 31_536_000), sleeper("minute", 60), sleeper("nothing", 0))
        assert order == ["nothing at 0.0", "minute at 60.0", "year at 31536000.0"]
        assert loop.true_time() == START + timedelta(days=365)

    simulated(main)


def test_timers_of_a_host_run_a_little_early() -> None:
    """They count whole milliseconds, as those of uvloop do; the world's are exact."""

    async def main(loop: SimulatedLoop) -> None:
        host = loop.host("one", address="10.0.0.11")
        moments: list[float] = []

        def start_timers() -> None:
            for seconds in (0.0003, 0.0101, 5.0):
                loop.call_later(seconds, lambda: moments.append(loop.time()))

        await asyncio.sleep(1.0009)
        host.run(start_timers)
        await asyncio.sleep(10)
        start_timers()
        await asyncio.sleep(10)
        assert moments == pytest.approx([1.0012, 1.010, 6.0, 11.0012, 11.0110, 16.0009], abs=1e-7)

    simulated(main)


def test_a_timeout_ends_a_wait_in_virtual_time() -> None:
    """``asyncio.timeout`` and ``wait_for`` count the loop's seconds."""

    async def main(loop: SimulatedLoop) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(100):
                await asyncio.Event().wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 23)
        assert loop.time() == 123

    simulated(main)


def test_who_waits_for_nothing_is_named() -> None:
    """If nothing can happen any more, the run ends, and the error names each task and the line at which it waits."""

    async def waiting_for_ever() -> None:
        await asyncio.Event().wait()

    async def main(loop: SimulatedLoop) -> None:
        await asyncio.create_task(waiting_for_ever(), name="the one")

    loop = SimulatedLoop(Random(1), START)
    with pytest.raises(Stuck, match=r"the one: .*waiting_for_ever:\d+ > .*wait"):
        loop.run_until_complete(main(loop))
    loop.close()
    assert asyncio.all_tasks(loop) == set()


def test_who_spins_lets_time_pass() -> None:
    """A task that looks again and again without waiting does not keep the timers of others from running."""

    async def main(loop: SimulatedLoop) -> None:
        done: list[int] = []
        loop.call_later(5, done.append, 1)
        while not done:  # noqa: ASYNC110 -- the law is about it
            await asyncio.sleep(0)
        assert loop.time() == 5

    simulated(main)


def test_a_cancelled_timer_never_runs() -> None:
    """However many timers are cancelled, the others run in their order, and the cancelled ones are forgotten."""

    async def main(loop: SimulatedLoop) -> None:
        ran: list[int] = []
        timers = [loop.call_later(number, ran.append, number) for number in range(1, 3001)]
        for timer in timers:
            if timer.when() % 10:
                timer.cancel()
        assert len(loop._timers) < 1000
        await asyncio.sleep(4000)
        assert ran == list(range(10, 3001, 10))

    simulated(main)


def test_a_thread_is_a_function_that_runs_later() -> None:
    """A function for a thread runs by itself after a moment; its result and its error come to who awaits it."""

    async def main(loop: SimulatedLoop) -> None:
        began = loop.time()
        assert await asyncio.to_thread(divmod, 7, 2) == (3, 1)
        assert loop.time() > began
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(divmod, 7, 0)

    simulated(main)


def test_work_belongs_to_its_host() -> None:
    """Tasks, timers and callbacks that the code of a host makes belong to this host."""

    async def main(loop: SimulatedLoop) -> None:
        seen: list[Host | None] = []
        host = loop.host("one", address="10.0.0.11")

        def note() -> None:
            seen.append(HOST.get())

        async def work() -> None:
            loop.call_soon(note)
            loop.call_later(1, note)
            await asyncio.create_task(asyncio.to_thread(note))
            await asyncio.sleep(2)

        await host.start(work())
        note()
        assert seen == [host, host, host, None]

    simulated(main)


def test_a_frozen_host_does_nothing_until_it_goes_on() -> None:
    """Nothing of a frozen host runs; when it goes on, what was ready runs first, then timers, the earlier first."""

    async def main(loop: SimulatedLoop) -> None:
        host = loop.host("one", address="10.0.0.11")
        done: list[str] = []

        async def ticking() -> None:
            loop.call_later(7, done.append, "late timer")
            loop.call_later(6, done.append, "timer")
            while True:
                await asyncio.sleep(1)
                done.append(f"tick {loop.time():.0f}")
                if loop.time() == 2:
                    host.freeze()
                    loop.call_soon(done.append, "ready")

        task = host.start(ticking())
        await asyncio.sleep(10)
        assert done == ["tick 1", "tick 2"]
        assert host.state is HostState.FROZEN
        host.thaw()
        await asyncio.sleep(1.5)
        assert done == ["tick 1", "tick 2", "ready", "timer", "late timer", "tick 10", "tick 11"]
        task.cancel()

    simulated(main)


def test_a_dead_host_is_gone() -> None:
    """After a kill no task of the host is left, whatever its tasks do about their cancellation, and no timer fires."""

    async def main(loop: SimulatedLoop) -> None:
        host = loop.host("one", address="10.0.0.11")
        done: list[str] = []

        async def clinging() -> None:
            for _ in range(3):
                try:
                    await asyncio.sleep(100)
                except asyncio.CancelledError:
                    await asyncio.create_task(asyncio.sleep(1))

        async def shielded() -> None:
            await asyncio.shield(asyncio.create_task(asyncio.sleep(50)))

        tasks = [host.start(clinging()), host.start(shielded())]
        loop.call_later(20, done.append, "the world's")
        host.run(loop.call_later, 20, done.append, "the host's")
        await asyncio.sleep(1)
        host.freeze()
        await asyncio.sleep(1)
        await host.kill()
        assert loop.time() == 2
        assert all(task.done() for task in tasks)
        assert loop.tasks_of(host) == []
        await asyncio.sleep(100)
        assert done == ["the world's"]

    simulated(main)


def test_a_name_is_taken_again_after_death() -> None:
    """A machine is switched on again under its name when its process is dead, not before."""

    async def main(loop: SimulatedLoop) -> None:
        host = loop.host("one", address="10.0.0.11")
        with pytest.raises(ValueError, match="one is running"):
            loop.host("one", address="10.0.0.11")
        await host.kill()
        again = loop.host("one", address="10.0.0.11")
        assert loop.hosts == {"one": again}
        assert again.pid != host.pid

    simulated(main)


def test_what_fails_unseen_is_kept() -> None:
    """An exception of a callback ends nothing, and is kept with the name of its host."""

    async def main(loop: SimulatedLoop) -> list[str]:
        host = loop.host("one", address="10.0.0.11")
        host.run(loop.call_soon, divmod, 1, 0)
        await asyncio.sleep(1)
        kept, loop.failures = loop.failures, []
        return kept

    assert simulated(main) == ["one: Exception in divmod: ZeroDivisionError('integer division or modulo by zero')"]
