"""Looking at many leases at once: who has them, and for how long. Reads only."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec
from redis.asyncio import Redis

from poller.store.connection import translated
from poller.store.owners import owner_of
from poller.store.scripts import LONGEST_LEASE_MS

_AT_ONCE: Final = 500  # in one pipeline; more would keep the store busy for others


class Held(msgspec.Struct, frozen=True):
    """A lease as it was seen.

    Attributes:
        value: what stands in it; None where it is free.
        seconds: for how long it lasts unless it is renewed; None where that was not asked, or it has no end.
    """

    value: bytes | None
    seconds: float | None = None

    @property
    def owner(self) -> str | None:
        """The process that has it, where that can be told."""
        return owner_of(self.value)

    @property
    def is_overlong(self) -> bool:
        """Whether it lasts longer than any may: taking it makes it end, see :data:`poller.store.scripts.TAKE`."""
        return self.seconds is not None and self.seconds * 1000 > LONGEST_LEASE_MS


async def held_leases(client: Redis, leases: Sequence[str], *, known: Collection[str]) -> list[Held]:
    """Each of these leases; how long it lasts is asked where its owner is none of those that are ``known``.

    Raises:
        StoreError: see :func:`~poller.store.connection.translated`.
    """
    values = await _asked(client, "get", leases)
    found = [Held(value) for value in values]
    strange = [number for number, one in enumerate(found) if one.value is not None and one.owner not in known]
    for number, left in zip(strange, await _asked(client, "pttl", [leases[one] for one in strange]), strict=True):
        gone = left == _NO_KEY
        found[number] = Held(None if gone else found[number].value, left / 1000 if left >= 0 else None)
    return found


async def _asked(client: Redis, command: str, keys: Sequence[str]) -> list[Any]:
    answers: list[Any] = []
    for first in range(0, len(keys), _AT_ONCE):
        with translated(client):
            asking = client.pipeline(transaction=False)
            for key in keys[first : first + _AT_ONCE]:
                getattr(asking, command)(key)
            answers += await asking.execute()
    return answers


_NO_KEY: Final = -2  # PTTL's answer for a key that is not there
