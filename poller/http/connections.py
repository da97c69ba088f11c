"""How many connections a listener of ours holds, and which one goes where there is no room.

**Invariants.**

- A listener holds a quarter of the descriptors that this process may have, :data:`MOST` at most. The others are kept
  for the store, sources and sinks, whoever opens connections and says nothing.
- Where there is no room, the connection goes that has waited longest for its client, to say more or to take more of
  its answer. Where every client waits for an answer, the new one is answered 503 and closed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import structlog

MOST: Final = 256
_QUARTER: Final = 4
_ENOUGH: Final = 65_536  # descriptors; a limit of millions is no use
_USUAL: Final = 1024  # where the limit is not known
_SAID_AGAIN: Final = 60.0  # seconds

_log = structlog.get_logger("poller.http")


class Droppable(Protocol):
    """A connection that can be given up."""

    def drop(self) -> None:
        """Close it now, whatever has not been sent yet."""


def descriptor_limit() -> int:
    """How many descriptors this process may have."""
    try:
        import resource  # noqa: PLC0415  # Windows has none
    except ImportError:
        return _USUAL
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _ENOUGH if soft == resource.RLIM_INFINITY else soft


def raise_descriptor_limit() -> None:
    """Have as many descriptors as this process may give itself, up to what is any use."""
    try:
        import resource  # noqa: PLC0415  # Windows has none
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_connections() -> int:
    """How many connections a listener may hold."""
    return max(1, min(MOST, descriptor_limit() // _QUARTER))


class Connections:
    """Those of one listener."""

    def __init__(self, most: int, *, clock: Callable[[], float]) -> None:
        """Take how many there may be, and seconds that only go forward."""
        self._most = most
        self._clock = clock
        self._held: set[Droppable] = set()
        self._waiting: dict[Droppable, None] = {}
        self._said: float | None = None

    def has_room(self, one: Droppable) -> bool:
        """Hold a new connection, which waits for its client; False: there is no room, and no other could go."""
        if len(self._held) >= self._most:
            self._say()
            longest = next(iter(self._waiting), None)
            if longest is None:
                return False
            self.forget(longest)
            longest.drop()
        self._held.add(one)
        self._waiting[one] = None
        return True

    def waits(self, one: Droppable, *, for_client: bool) -> None:
        """Note whether a connection waits for its client, or its client for an answer."""
        if not for_client:
            self._waiting.pop(one, None)
        elif one in self._held:
            self._waiting.setdefault(one)

    def forget(self, one: Droppable) -> None:
        """It is closed."""
        self._held.discard(one)
        self._waiting.pop(one, None)

    def _say(self) -> None:
        now = self._clock()
        if self._said is None or now - self._said >= _SAID_AGAIN:
            self._said = now
            advice = "those that wait longest for their client are closed; see who opens them, or put a proxy in front"
            _log.warning("no room for more HTTP connections", most=self._most, advice=advice)
