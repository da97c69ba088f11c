"""Tasks and processes stop: on signals, on cancellation, and when a cancellation is swallowed."""

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
