"""How late the event loop runs what is due: whether something keeps it busy, or the process slept.

Law: costs two short turns of the loop a second. What is measured is what a timer meets; nobody is blamed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

EVERY: Final = 0.5
"""Seconds between looks."""

ASLEEP: Final = 1.0
"""Seconds; whoever is later than that was not busy but asleep: stopped, or its machine."""


@contextmanager
def measured(
    observe: Callable[[float], None],
    *,
    overslept: Callable[[], None] = lambda: None,
    every: float = EVERY,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    """Measure while the block runs.

    Args:
        observe: told how late each look was, in seconds.
        overslept: called where one was later than :data:`ASLEEP`, before anything else notices that time has passed.
        every: seconds between looks.
        clock: seconds that only go forward; the loop's own may stand still within a turn.
    """
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None

    def begin() -> None:
        nonlocal timer
        timer = loop.call_later(every, look, clock() + every)

    def look(due: float) -> None:
        late = max(clock() - due, 0.0)
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
