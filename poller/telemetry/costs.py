"""What a round costs, gathered where it is spent and told in the log's one event about it.

Law: whoever spends does not know for whom. What is spent by a task that a round has started counts for that round.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final


class Costs:
    """Of one round.

    Attributes:
        requests: to the source, repeated ones included.
        retries: those that repeated one that had failed.
        received: bytes of their answers' bodies as they were sent.
        source_seconds: how long requests took, added up though they run side by side.
        commits: how many were written, or tried to.
        commit_seconds: how long these took.
    """

    __slots__ = ("commit_seconds", "commits", "received", "requests", "retries", "source_seconds")

    def __init__(self) -> None:
        self.requests = self.retries = self.received = self.commits = 0
        self.source_seconds = self.commit_seconds = 0.0

    @property
    def public(self) -> dict[str, int | float]:
        """As the log has it; bytes and seconds say so in their names."""
        return {
            "requests": self.requests,
            "retries": self.retries,
            "bytes": self.received,
            "source_seconds": round(self.source_seconds, 3),
            "commits": self.commits,
            "commit_seconds": round(self.commit_seconds, 3),
        }


_current: Final[ContextVar[Costs | None]] = ContextVar("costs", default=None)


@contextmanager
def counted() -> Iterator[Costs]:
    """What is spent in the block."""
    costs = Costs()
    before = _current.set(costs)
    try:
        yield costs
    finally:
        _current.reset(before)


def requested(seconds: float, received: int) -> None:
    """A request has ended."""
    if costs := _current.get():
        costs.requests += 1
        costs.received += received
        costs.source_seconds += seconds


def retried() -> None:
    """The next request repeats one that has failed."""
    if costs := _current.get():
        costs.retries += 1


def commit_timed(seconds: float) -> None:
    """A commit has ended, well or not."""
    if costs := _current.get():
        costs.commits += 1
        costs.commit_seconds += seconds
