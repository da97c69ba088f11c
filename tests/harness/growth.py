"""Measures how the CPU time of some work grows with the size of its input."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

TIMES: Final = 8
LINEAR: Final = TIMES**1.5
"""A limit between the growth of linear work for :data:`TIMES` the input (8) and of quadratic work (64): about 23."""

_REPEATED: Final = 5
_NOISE: Final = 0.0002  # seconds; shorter times count as this


def growth(work: Callable[[int], object], size: int, *, limit: float = LINEAR) -> float:
    """The CPU time of this thread for ``TIMES * size`` divided by that for ``size``: the least of several runs.

    A busy machine makes some runs longer, so above the limit it is measured again. Choose a size that takes about a
    millisecond when the work is linear, and not minutes when it is not.
    """
    with _uncollected():
        small = max(_NOISE, min(_cpu(work, size) for _ in range(_REPEATED)))
        large = _cpu(work, TIMES * size)
        for _ in range(_REPEATED):
            if large < limit * small:
                break
            large = min(large, _cpu(work, TIMES * size))
    return large / small


@contextmanager
def _uncollected() -> Iterator[None]:
    """Disable garbage collection during the block: its time depends on the whole process, not on the work."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _cpu(work: Callable[[int], object], size: int) -> float:
    began = time.thread_time()
    work(size)
    return time.thread_time() - began
