"""Notifications to the supervisor (systemd's sd_notify), and the event loop's lag.

**Invariants**

- READY=1 is sent once, when this process does its work and its store is well; STOPPING=1 once, when it is stopped.
- WATCHDOG=1 comes from the loop that does the work, while the work lasts, twice per interval of the supervisor. So a
  loop that hangs is silent, and so is one that has nothing left to run. A store or a source that is away is no reason
  for silence: after a restart it would still be away.
- Without ``NOTIFY_SOCKET`` nothing is sent; a supervisor that does not listen any more is ignored.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

from poller.clock import Clock
from poller.daemon.health import Readiness, ReadinessReport

LONGEST_STATUS: Final = 300
"""Characters of a status; logs and the status page hold more."""

_STARTING: Final = 0.25  # seconds between looks whether it is ready
_CALM: Final = 10.0  # seconds between looks where no watchdog asks for less


class SupervisorNotifier:
    """The supervisor of this process, where there is one."""

    def __init__(self, environ: Mapping[str, str], *, pid: int | None = None) -> None:
        """Take where to say it from ``NOTIFY_SOCKET``, ``WATCHDOG_USEC`` and ``WATCHDOG_PID``.

        Args:
            environ: of the process.
            pid: the process; default: this one.
        """
        address = environ.get("NOTIFY_SOCKET", "")
        asked = environ.get("WATCHDOG_USEC", "")
        meant = environ.get("WATCHDOG_PID", "") in {"", str(os.getpid() if pid is None else pid)}
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.listens = address.startswith(("/", "@"))
        self.watchdog = int(asked) / 1e6 if meant and asked.isascii() and asked.isdecimal() and int(asked) else None
        """Seconds after which it misses a sign of life; None: it never does."""

    def notify(self, *words: str) -> None:
        """One datagram of these assignments. Never waits, never fails."""
        if self.listens:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(0)
                sender.sendto("\n".join(words).encode(errors="backslashreplace"), self._address)


async def supervised(
    supervisor: SupervisorNotifier,
    readiness: Readiness,
    doing: Callable[[], str],
    *,
    stop: asyncio.Event,
    over: asyncio.Event,
    clock: Clock,
) -> None:
    """Keep the supervisor informed until ``over`` is set.

    Args:
        supervisor: is notified.
        readiness: of this process.
        doing: what it does, in a few words.
        stop: set when the process is stopped.
        over: set when its work has ended.
        clock: of this process.
    """
    ready, told = False, set[str]()
    while supervisor.listens and not over.is_set():
        if ready and supervisor.watchdog:
            supervisor.notify("WATCHDOG=1")
        report, stopping = await readiness.report(), stop.is_set()
        ready |= report.ready
        words = [f"STATUS={status(report, doing())}", *["READY=1"] * ready, *["STOPPING=1"] * stopping]
        if fresh := [word for word in words if word not in told]:
            supervisor.notify(*fresh)
        told = set(words)
        each = (supervisor.watchdog or 2 * _CALM) / 2
        await clock.wait(over if stopping else stop, each if ready else min(each, _STARTING))


def counted(number: int, what: str) -> str:
    """A number with its noun."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def status(report: ReadinessReport, doing: str) -> str:
    """One line: what the process does, and what fails."""
    problems = [f"{one.name}: {one.text}" for one in report.reasons]
    problems += [f"{feed} fails: {text}" for feed, text in (*report.failing.items(), *report.subscriptions.items())]
    line = " ".join(f"{doing}; {', '.join(problems) or 'all is well'}".split())
    return line if len(line) <= LONGEST_STATUS else line[: LONGEST_STATUS - 1] + "…"


# Lag of the event loop: it costs two short turns of the loop a second.

EVERY: Final = 0.5
"""Seconds between looks."""

ASLEEP: Final = 1.0
"""Seconds; a process later than that was not busy but asleep: stopped, or its machine was."""


@contextmanager
def measured(
    observe: Callable[[float], None],
    clock: Clock,
    *,
    overslept: Callable[[], None] = lambda: None,
    every: float = EVERY,
) -> Iterator[None]:
    """Measure while the block runs.

    Args:
        observe: is called with how late each look was, in seconds.
        clock: of this process.
        overslept: called where one was later than :data:`ASLEEP`, before anything else notices that time has passed.
        every: seconds between looks.
    """
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None

    def begin() -> None:
        nonlocal timer
        timer = loop.call_later(every, look, clock.monotonic() + every)

    def look(due: float) -> None:
        late = max(clock.monotonic() - due, 0.0)
        observe(late)
        if late >= ASLEEP:
            overslept()
        begin()

    begin()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()
