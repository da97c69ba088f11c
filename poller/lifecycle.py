"""Stop signals, cancellation of tasks, time limits, ends of connections, and computations that yield to other tasks."""

from __future__ import annotations

import asyncio
import signal
import socket
import struct
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar, cast

from poller.clock import Clock

_CANCEL_AGAIN_SECONDS: Final = 0.1
_TURNS_OF_AN_ANSWER: Final = 3  # of the event loop: with uvloop two are enough
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


_DISCARDING: Final = struct.pack("ii", 1, 0)


def abandon(transport: asyncio.WriteTransport) -> None:
    """Close a connection, and discard what the peer has not received of it.

    Without that the system goes on sending for minutes after a connection was closed. So what was lost on the way, and
    given up here, would still arrive, after all that was sent over other connections since.
    """
    used: socket.socket | None = transport.get_extra_info("socket")
    if used is not None:
        with suppress(OSError, ValueError):  # it is closed already; uvloop says so with a ValueError
            used.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DISCARDING)
    transport.abort()


class TimeLimit:
    """A time limit that many short blocks share; each gets a block of its own from :meth:`block`.

    A block does what ``asyncio.timeout`` does, without a timer of its own: since all blocks have the same limit, they
    are due in the order in which they began, and one timer is enough for all of them.
    """

    def __init__(self, seconds: float, *, clock: Clock) -> None:
        """``seconds``: for each block, by this clock."""
        self.seconds = seconds
        self._clock = clock
        self._running: dict[LimitedBlock, float] = {}  # when each is due
        self._timer: asyncio.TimerHandle | None = None

    def block(self) -> LimitedBlock:
        """A block of the current task, which raises TimeoutError when it lasts longer; for one use."""
        return LimitedBlock(self)

    def begun(self, block: LimitedBlock) -> None:
        """Watch a block from now on."""
        self._running[block] = self._clock.monotonic() + self.seconds
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.seconds, self._expire)

    def ended(self, block: LimitedBlock) -> None:
        """Watch a block no more."""
        self._running.pop(block, None)

    def _expire(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        for block, due in list(self._running.items()):
            if due > now:
                self._timer = asyncio.get_running_loop().call_later(due - now, self._expire)
                return
            del self._running[block]
            block.expire()


class LimitedBlock:
    """A block with a time limit, see :class:`TimeLimit`."""

    __slots__ = ("_cancelling", "_expired", "_limit", "_task")

    def __init__(self, limit: TimeLimit) -> None:
        self._limit = limit
        self._expired = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a block with a time limit belongs to a task")
        self._task, self._cancelling = task, task.cancelling()
        self._limit.begun(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._limit.ended(self)
        # A cancellation from outside is passed on, even if it came together with the one of the limit.
        if self._expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def expire(self) -> None:
        """Interrupt the block."""
        self._expired = True
        self._task.cancel()


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


async def give_way() -> None:
    """Let other tasks go on with what has arrived meanwhile: an answer is read, and the task that waits for it runs."""
    for _ in range(_TURNS_OF_AN_ANSWER):
        await asyncio.sleep(0)


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
