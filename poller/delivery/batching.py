"""How a run of events is cut into requests where the mode is ``batch``.

The law: the order stays, every event goes into exactly one batch, and no batch is over either limit, but for a single
event that is larger than the limit by itself: that one goes alone, for cutting it is impossible and dropping it wrong.

Pure: how long to wait for more events (the last batch may have room) is decided by whoever has a clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

_BRACKETS: Final = 2
_COMMA: Final = 1


def batches(sizes: Sequence[int], *, max_events: int, max_bytes: int) -> Iterator[slice]:
    """Where to cut.

    Args:
        sizes: of each event, in bytes.
        max_events: in one batch, 1 or more.
        max_bytes: of one batch's body, brackets and commas included.

    Yields:
        Slices that follow on each other and cover the run.
    """
    start, body = 0, _BRACKETS
    for place, size in enumerate(sizes):
        if place > start and (place - start >= max_events or body + _COMMA + size > max_bytes):
            yield slice(start, place)
            start, body = place, _BRACKETS
        body += size + (_COMMA if place > start else 0)
    if start < len(sizes):
        yield slice(start, len(sizes))


def full(sizes: Sequence[int], *, max_events: int, max_bytes: int) -> bool:
    """Whether waiting for more would not make the first batch larger: it is cut already, or at a limit.

    Args:
        sizes: of each event so far, in bytes.
        max_events: as in :func:`batches`.
        max_bytes: as in :func:`batches`.
    """
    first = next(batches(sizes, max_events=max_events, max_bytes=max_bytes), slice(0, 0))
    body = _BRACKETS + sum(sizes) + _COMMA * len(sizes)  # with the comma that a further event would need
    return first.stop < len(sizes) or len(sizes) >= max_events or body >= max_bytes
