"""Stop signals, cancellation of tasks, and long computations that yield to other tasks."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar, cast

_CANCEL_AGAIN_SECONDS: Final = 0.1
T = TypeVar("T")


@contextmanager
def stopped_by_signals() -> Iterator[asyncio.Event]:
    """An event of the running loop that the first SIGTERM, SIGINT or SIGHUP sets; later ones change nothing."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    signals = (*terminations(), signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, stopped.set)
    try:
        yield stopped
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def terminations() -> tuple[signal.Signals, ...]:
    """SIGTERM and, unless ignored as under ``nohup``, SIGHUP: a closed terminal ends the program in order."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return (signal.SIGTERM,) if ignored else (signal.SIGTERM, signal.SIGHUP)


async def ended(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks repeatedly until they have ended.

    Once is not enough: before Python 3.12, ``asyncio.wait_for``, which redis-py uses for its commands, loses a
    cancellation that comes at the moment in which the awaited result is ready.
    """
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_CANCEL_AGAIN_SECONDS)
    await asyncio.gather(*tasks, return_exceptions=True)


async def finished(task: asyncio.Future[Any], *, within: float) -> None:
    """Wait for a task that should finish although its owner was cancelled; cancel it after this many seconds.

    Several tasks are gathered by the caller. Further cancellations are ignored meanwhile, because :func:`ended`
    repeats them.
    """
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    timer = loop.call_later(within, over.set_result, None)
    while not task.done() and not over.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait({task, over}, return_when=asyncio.FIRST_COMPLETED)
    timer.cancel()
    await ended(task)


async def first_of(stop: asyncio.Event, *tasks: asyncio.Task[None]) -> None:
    """Wait for ``stop``. If a task ends before it, its error is raised."""
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({stopping, *tasks}, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        await ended(stopping)


async def unless_stopped(work: Coroutine[None, None, T], stop: asyncio.Event) -> T | None:
    """The work's result; None: ``stop`` came first, and the work was cancelled."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        await ended(working, stopping)


async def in_turns(steps: Generator[None, None, T]) -> T:
    """The value of a long computation; other tasks run whenever it yields."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return cast("T", done.value)
        await asyncio.sleep(0)


def at_once(steps: Generator[None, None, T]) -> T:
    """As :func:`in_turns`, without yielding to other tasks."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return cast("T", done.value)
