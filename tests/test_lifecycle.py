"""Tasks and processes stop: on signals, on cancellation, and when a cancellation is swallowed."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from contextlib import closing, suppress
from typing import cast

import pytest
import uvloop

from poller.clock import Clock
from poller.lifecycle import TimeLimit, ended, finished, give_way, stopped_by_signals
from tests.harness.clock import FakeClock
from tests.harness.waiting import within


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_sets_the_event(number: signal.Signals) -> None:
    """The first SIGTERM, SIGINT or SIGHUP sets the event, and further ones change nothing."""
    with stopped_by_signals() as stopped:
        assert not stopped.is_set()
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
        await within(stopped.wait(), 5)


async def test_a_hangup_that_is_ignored_stays_ignored() -> None:
    """Under ``nohup`` the hangup stays ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopped_by_signals() as stopped:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
            await within(stopped.wait(), 5)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


async def test_a_task_that_swallows_a_cancellation_ends_all_the_same() -> None:
    """A task is cancelled until it has ended, because libraries sometimes swallow a cancellation."""
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        while swallowed < 3:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed += 1

    task = asyncio.create_task(stubborn())
    started = asyncio.Event()
    asyncio.get_running_loop().call_soon(started.set)
    await started.wait()
    await ended(task)
    assert task.done()
    assert swallowed == 3


@pytest.mark.parametrize("factory", [None, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_an_answer_that_has_arrived_is_acted_upon(factory: Callable[[], asyncio.AbstractEventLoop] | None) -> None:
    """A task that computes lets another one go on that waits for a socket; with both kinds of event loops."""

    async def compute() -> None:
        own, peer = socket.socketpair()
        with own, peer:
            reader, writer = await asyncio.open_connection(sock=own)
            with closing(writer):
                waiting = asyncio.create_task(reader.readexactly(6))
                await give_way()  # it waits now
                peer.sendall(b"answer")
                await give_way()
                assert waiting.done()
                assert waiting.result() == b"answer"

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(compute())


async def test_what_is_to_finish_is_not_disturbed_by_repeated_cancellations() -> None:
    """An owner that is cancelled repeatedly still waits for its work to finish."""
    work, started = asyncio.Event(), asyncio.Event()

    async def owner(task: asyncio.Task[bool]) -> None:
        started.set()
        try:
            await asyncio.shield(task)
        finally:
            await finished(task, within=5)

    task = asyncio.create_task(work.wait())
    owning = asyncio.create_task(owner(task))
    await started.wait()
    asyncio.get_running_loop().call_later(0.35, work.set)  # after several repetitions
    await ended(owning)
    assert task.done()
    assert not task.cancelled()


async def test_what_does_not_finish_in_time_is_ended() -> None:
    """Work that does not finish in time is cancelled."""
    task = asyncio.create_task(asyncio.Event().wait())
    await finished(task, within=0.05)
    with suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_blocks_share_a_time_limit() -> None:
    """Each block that lasts longer is interrupted, in the order in which they began; one that ends in time is not."""
    limit, clock = TimeLimit(0.05, clock=Clock()), Clock()
    began, ended_at = clock.monotonic(), list[int]()

    async def one(number: int, event: asyncio.Event) -> bool:
        try:
            with limit.block():
                await event.wait()
        except TimeoutError:
            ended_at.append(number)
            return clock.monotonic() - began >= limit.seconds
        return False

    in_time, never = asyncio.Event(), asyncio.Event()
    tasks = [asyncio.create_task(one(number, in_time if number == 1 else never)) for number in range(3)]
    await asyncio.sleep(0)
    in_time.set()
    assert await asyncio.gather(*tasks) == [True, False, True]
    assert ended_at == [0, 2]
    await within(one(3, never), 10)  # the timer is set anew after a time without blocks
    assert ended_at == [0, 2, 3]


async def test_a_block_that_began_later_is_due_later() -> None:
    """One timer serves all blocks: after the first one is interrupted, it waits for the next."""
    clock = FakeClock()
    limit = TimeLimit(0.01, clock=clock)

    async def one() -> str:
        with suppress(TimeoutError), limit.block():
            await asyncio.Event().wait()
        return "interrupted"

    first = asyncio.create_task(one())
    await asyncio.sleep(0)
    clock.move(0.005)
    second = asyncio.create_task(one())
    await asyncio.sleep(0)
    clock.move(0.005)
    assert await within(first, 5) == "interrupted"
    assert not second.done()
    clock.move(0.005)
    assert await within(second, 5) == "interrupted"


@pytest.mark.parametrize("passed", [False, True])
async def test_a_cancellation_is_no_time_limit(passed: bool) -> None:
    """A task that is cancelled stays cancelled, also if the limit passes before it notices."""
    limit = TimeLimit(10, clock=Clock())
    block, entered = limit.block(), asyncio.Event()

    async def work() -> None:
        with block:
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await entered.wait()
    if passed:
        block.expire()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_error_of_a_block_is_its_own() -> None:
    """An interrupted block that raises an error raises that one, and its task is not cancelled."""
    limit = TimeLimit(10, clock=Clock())
    block = limit.block()
    asyncio.get_running_loop().call_soon(block.expire)
    with pytest.raises(ZeroDivisionError), block:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ZeroDivisionError from None
    assert not cast("asyncio.Task[None]", asyncio.current_task()).cancelling()
    await asyncio.sleep(0)
