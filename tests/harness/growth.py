"""How the CPU time of a piece of work grows with the size of what it is given."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

TIMES: Final = 8
LINEAR: Final = TIMES**1.5
"""Between what linear work takes more for :data:`TIMES` as much (8) and what quadratic work does (64): about 23."""

_REPEATED: Final = 5
_NOISE: Final = 0.0002  # seconds; what takes less counts as that


def growth(work: Callable[[int], object], size: int) -> float:
    """How many times the CPU time of this thread for ``TIMES * size`` is that for ``size``: the least of several each.

    Choose a size that takes about a millisecond when it is right, and not minutes when it is wrong.
    """
    with _uncollected():
        small = max(_NOISE, min(_cpu(work, size) for _ in range(_REPEATED)))
        large = _cpu(work, TIMES * size)
        if large > LINEAR * small:  # once more, for a busy machine; what is wrong is far beyond and slow enough
            large = min(large, _cpu(work, TIMES * size))
    return large / small


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage collection during the block: its time grows with what the process holds, not with the work."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _cpu(work: Callable[[int], object], size: int) -> float:
    began = time.thread_time()
    work(size)
    return time.thread_time() - began
