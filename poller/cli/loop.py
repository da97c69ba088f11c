"""One event loop for one command: uvloop where it is installed, asyncio's own elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from poller.lifecycle import terminations

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run it to its end.

    SIGINT, SIGTERM and SIGHUP cancel it, so that leases are given back and files closed, unless it listens to them
    itself (:func:`poller.lifecycle.stopped_by_signals`).

    Raises:
        KeyboardInterrupt: it was told to stop by a signal, and stopped.
    """
    with asyncio.Runner(loop_factory=_factory()) as runner:
        try:
            return runner.run(_terminable(main))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


async def _terminable(main: Coroutine[Any, Any, T]) -> T:
    task = asyncio.current_task()
    if task is not None:
        for number in terminations():
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await main


def _factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 -- not on every platform
    except ImportError:
        return None
    return uvloop.new_event_loop
