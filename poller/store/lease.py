"""Keeping leases alive between and during rounds.

A process keeps the lease of each feed that it polls from its first round to its end, renewed every third of its
lifetime, so that no other process polls in between. It may lose one all the same (a pause, a store that was away): it
learns so here or from its next commit, and takes it again with its next round if nobody else has it.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, Protocol, cast

import msgspec
from redis.asyncio import Redis

from poller.errors import StoreError, StoreUnavailable
from poller.redis.errors import translated
from poller.store.scripts import LONGEST_LEASE_MS

RELEASE_SECONDS: Final = 1.5
_SIDE_BY_SIDE: Final = 100


class Lease(Protocol):
    """What is to be kept; see :class:`poller.store.feed.FeedStore`."""

    @property
    def held(self) -> bool:
        """Whether it is ours, as far as is known."""
        ...

    async def renew(self) -> bool:
        """Keep it for another term."""
        ...

    async def release(self) -> None:
        """Let it go."""
        ...


async def keep_renewed(leases: Iterable[Lease], *, ttl: timedelta, sleep: Callable[[float], Awaitable[None]]) -> None:
    """Renew those that are held, every third of their lifetime, until cancelled.

    Many are renewed side by side: a busy event loop makes each answer wait, and in a row the last would come too late.
    A store that is away is no reason to stop: the leases run out there by themselves, and the rounds say what is wrong.
    Of a cluster one server may be away; the leases on the others are renewed.
    """
    while True:
        await sleep(ttl.total_seconds() / 3)
        held = [lease for lease in leases if lease.held]
        for first in range(0, len(held), _SIDE_BY_SIDE):
            renewing = (_renewed(lease) for lease in held[first : first + _SIDE_BY_SIDE])
            if not any(await asyncio.gather(*renewing)):
                break  # the others would wait for the same store


async def _renewed(lease: Lease) -> bool:
    """Whether the store answered."""
    try:
        await lease.renew()
    except StoreUnavailable:
        return False
    except StoreError:
        pass  # this one's next round says what is wrong
    return True


async def release_all(leases: Iterable[Lease], *, within: float = RELEASE_SECONDS) -> None:
    """Let go of those that are held, so that another process can go on at once.

    A store that does not answer ends it, at the latest after so many seconds: leases run out by themselves.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(within):
            for lease in leases:
                if lease.held:
                    try:
                        await lease.release()
                    except StoreUnavailable:
                        return
                    except StoreError:
                        continue


# Who has a lease: the process's name in front of the nonce that proves it.
#
# The name is for people and for the other processes, and anybody may know it. The nonce is random, and nobody may: it
# never leaves the process but for the store.

_SHOWN: Final = 24  # characters of a machine's name


def member_name() -> str:
    """A name for this process that no other one has: machine, process id, and something random."""
    machine = re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().partition(".")[0].lower())
    return f"{machine.strip('-')[:_SHOWN] or 'poller'}-{os.getpid()}-{secrets.token_hex(2)}"


def nonce_of(member: str) -> str:
    """What this process writes into a lease; fresh each time."""
    return f"{member}/{secrets.token_hex(16)}"


def owner_of(lease: bytes | None) -> str | None:
    """The process that has a lease; None where it is free, or held in a form that is not ours."""
    name, slash, _ = (lease or b"").decode("utf-8", "replace").partition("/")
    return name if slash and name else None


async def in_whose_hands(client: Redis, lease: str) -> str:
    """Who has a lease now, as the end of a message; empty where nobody has it or the store does not say."""
    with suppress(StoreError), translated(client):
        owner = owner_of(cast("bytes | None", await client.get(lease)))
        return f"; {owner} has it" if owner else ""
    return ""


# Looking at many leases at once: who has them, and for how long. Reads only.

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
        StoreError: see :func:`~poller.redis.client.translated`.
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
