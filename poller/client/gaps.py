"""Events that a consumer cannot read any more, and how many of them an erasure took.

**Invariants**

- What counts as erased is certain: a number that the daemon has noted, or an entry where all numbers around it are. So
  nothing that was lost is passed over as erased.
- Who may not read the notes, or finds something else there, reports the same gap as deleted or trimmed.
- The notes are read where something is missing, and only then.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Literal

from redis.exceptions import (
    AuthenticationError,
    ClusterDownError,
    ClusterError,
    MasterDownError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import TimeoutError as Unanswered

_DIGITS: Final = 20  # of a sequence
_PASSING: Final = re.compile(
    r"(?:^|\s-?)(?:BUSY|CLUSTERDOWN|LOADING|MASTERDOWN|MISCONF|NOREPLICAS|OOM|READONLY|TRYAGAIN|UNBLOCKED)\b"
)
"""Errors that a server gives for a while …"""

_PASSING_CLASSES: Final = ClusterDownError, MasterDownError, OutOfMemoryError, ReadOnlyError, TryAgainError
"""… and those of which redis-py cuts off the first word, also where a script raises them."""


class Gap(Exception):
    """Events that were published and can no longer be read.

    Attributes:
        feed: ``SOURCE/NAME``.
        after: the sequence number before the gap; None: unknown.
        before: the sequence number after it; None: unknown.
        missing: how many numbers are missing: of events, or taken by an erasure itself.
        erased: how many of them an erasure of a record took.
        reason: ``erased``: it took all of them; ``trimmed``: the stream begins after the others; ``deleted``: they were
            taken out of it.
    """

    def __init__(
        self,
        feed: str,
        *,
        after: int | None,
        before: int | None,
        missing: int,
        reason: Literal["trimmed", "deleted", "erased"],
        erased: int = 0,
    ) -> None:
        erased = min(erased, missing)
        where = "" if after is None else f" after sequence {after}"
        if erased == missing:
            reason, said = "erased", f"{missing} sequence numbers{where} are missing because records were erased"
        elif erased:
            said = f"{missing} sequence numbers{where} are missing: {erased} because records were erased, and "
            said += f"{missing - erased} events were {reason} before they were read"
        else:
            said = f"{missing} events{where} were {reason} before they were read"
        super().__init__(f"{feed}: {said}")
        self.feed = feed
        self.after = after
        self.before = before
        self.missing = missing
        self.erased = erased
        self.reason = reason


class ErasedNumbers:
    """What the daemon has noted of the erasures of one feed. Each method raises errors of the store that pass."""

    def __init__(self, client: Any, events: str) -> None:
        """Take a redis-py client that returns bytes, and the key of the feed's stream."""
        self._client = client
        self._events = events
        self._key = f"{events.rpartition(':')[0]}:erased_events"

    async def between(self, after: int, before: int) -> int:
        """How many numbers between these two were erased."""
        found = await _granted(self._client.zcount(self._key, f"({after}", f"({before}"))
        return found if isinstance(found, int) else 0

    async def among(self, gone: Sequence[str]) -> int:
        """How many of these entries were erased, at least; their content is gone, and so their numbers.

        Entries that lie between the same two events of the stream have numbers between those of the two.
        """
        left, erased = sorted(gone, key=order), 0
        while left:
            before = await self._neighbour(left[0], "xrevrange")
            after = await self._neighbour(left[0], "xrange")
            here = [one for one in left if after is None or order(one) < order(after[0])]
            left = left[len(here) :]
            low = 0 if before is None else before[1]
            if low is None:
                continue
            if after is None:
                erased += await self._following(low, len(here))
            elif after[1] is not None:
                others = after[1] - low - 1 - await self.between(low, after[1])  # numbers that were not erased
                erased += max(len(here) - others, 0)
        return erased

    async def _following(self, number: int, most: int) -> int:
        """How many numbers were erased without a break after this one."""
        asked = self._client.zrangebyscore(self._key, f"({number}", "+inf", start=0, num=most)
        found = await _granted(asked)
        numbers = [int(one) for one in found or () if one.isdigit()]
        return sum(one == number + 1 + at for at, one in enumerate(numbers))

    async def _neighbour(self, entry: str, command: Literal["xrange", "xrevrange"]) -> tuple[str, int | None] | None:
        """The entry of the stream next to this one, and its number if it has one."""
        bound = {"min": f"({entry}"} if command == "xrange" else {"max": f"({entry}"}
        found = await getattr(self._client, command)(self._events, count=1, **bound)
        if not found:
            return None
        event: Any = None
        with suppress(ValueError, RecursionError):
            event = json.loads(found[0][1].get(b"data", b""))
        return found[0][0].decode(), number_of(event.get("sequence") if isinstance(event, Mapping) else None)


def order(entry: str) -> tuple[int, int]:
    """An entry's id as it is compared."""
    milliseconds, _, number = entry.partition("-")
    return int(milliseconds), int(number or 0)


def number_of(sequence: object) -> int | None:
    """The attribute ``sequence`` of an event as a number; None: it is none."""
    text = sequence
    is_number = isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) <= _DIGITS
    return int(text) if is_number and isinstance(text, str) else None


def is_passing(error: RedisError | OSError) -> bool:
    """Whether the store gives this error for a while, and what was asked is to be asked again."""
    if isinstance(error, AuthenticationError):
        return False
    if isinstance(error, ResponseError):
        return isinstance(error, _PASSING_CLASSES) or _PASSING.search(str(error)) is not None
    return isinstance(error, Disconnected | Unanswered | RedisClusterException | ClusterError | OSError)


async def _granted(asked: Awaitable[Any]) -> Any:
    """The answer; None: the server refuses it for good, for want of a permission or for what the key holds."""
    try:
        return await asked
    except ResponseError as error:
        if is_passing(error):
            raise
        return None
