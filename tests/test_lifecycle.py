"""What is told to stop stops: by signal, by cancellation, and when a cancellation is swallowed."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress

import pytest

from poller.lifecycle import ended, finished, stopped_by_signals
from tests.harness.waiting import within


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_sets_the_event(number: signal.Signals) -> None:
    """Law: the first SIGTERM, SIGINT or SIGHUP asks to stop, and more of them change nothing."""
    with stopped_by_signals() as stopped:
        assert not stopped.is_set()
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
        await within(stopped.wait(), 5)


async def test_a_hangup_that_is_ignored_stays_ignored() -> None:
    """Law: under ``nohup`` the end of the terminal ends nothing."""
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
    """Law: cancelled until it has ended, for libraries lose a cancellation now and then."""
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


async def test_what_is_to_finish_is_not_disturbed_by_repeated_cancellations() -> None:
    """Law: an owner that is cancelled again and again still sees its work to the end."""
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
    """Law: finishing has a bound."""
    task = asyncio.create_task(asyncio.Event().wait())
    await finished(task, within=0.05)
    with suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()
