"""Leases: the time-limited right of one process to work on a feed or feed consumer.

A process keeps the lease of what it works on from the first round or delivery to the last one, renewed every third of
its lifetime, so that no other process works in between. It may lose one all the same (a pause, a store that was away):
it learns so from a renewal or a commit, and acquires it again if no other process has it.

**Invariants**

- A term is counted from before the store is asked, so a lease never seems to last longer than it does.
- A lease whose answer is lost counts as claimed: it is released in the end.
- The answer to an earlier question never overrules the answer to a later one.
- The owner's name is for people and other processes. The token is random and never leaves the process but for the
  store.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import socket
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol, cast

import msgspec
from redis.asyncio import Redis

from poller.clock import Clock
from poller.errors import Fenced, StoreError, StoreRefused, StoreUnavailable
from poller.lifecycle import ended
from poller.redis.errors import translated
from poller.store.scripts import LONGEST_LEASE_MS, ScriptBatch, ScriptCall, lua

RELEASE_SECONDS: Final = 1.5
_TOGETHER: Final = 250
_AGAIN: Final = 0.5  # seconds

_ACQUIRE: Final = lua("acquire_lease")

_RENEW: Final = lua("renew_lease")

_RENEW_MANY: Final = lua("renew_leases")


class HeldElsewhere(msgspec.Struct, frozen=True):
    """Another process has the lease; ``remaining``: until it expires unless renewed."""

    remaining: timedelta


class LeaseScripts:
    """The scripts of leases, for one client.

    Attributes:
        batch: sends them, those of several leases in one request.
    """

    def __init__(self, client: Redis, *, shebang: str = "") -> None:
        """Take the client; ``shebang`` is the first line of scripts where the server knows it."""
        self.batch = ScriptBatch(client, shebang=shebang)


class LeaseRenewal(NamedTuple):
    """A request to keep a lease for another term.

    Attributes:
        asked: how often the lease had been asked for before.
        until: when the term ends.
        answered: the serial of the last settlement that was answered before.
    """

    asked: int
    until: float
    answered: int = 0


class Lease:
    """One lease of this process.

    Attributes:
        key: of the lease in the store.
        token: the key's value while this process has the lease; :func:`nonce_of` draws one.
        ttl: how long it lives without being renewed.
        claimed: whether this process may have it: it was requested, and neither refused, lost nor released since.
        asked: how often it was asked for.
        answered: the serial of the last settlement under it that was answered and has to be in the store; 0: none.
        batch: sends its scripts.
    """

    def __init__(
        self,
        client: Redis,
        scripts: LeaseScripts,
        key: str,
        *,
        token: str,
        ttl: timedelta,
        certain: bool = True,
        witness: str = "",
        clock: Clock,
    ) -> None:
        """Describe the lease; nothing is sent.

        Args:
            client: without retries of its own.
            scripts: of that client.
            key: of the lease in the store.
            token: proves that this process has the lease.
            ttl: how long it lives without being renewed.
            certain: whether it counts as held only while its term lasts; else until an answer says otherwise, which is
                enough for work whose every write checks the lease.
            witness: the key of a hash in which ``settled`` has the token and the serial of the last settlement; a store
                that has lost one (a restart, a failover) makes the lease count as lost. Empty: there is none.
            clock: of this process; its seconds go forward while the process is stopped, too.
        """
        self.key = key
        self.token = token
        self.ttl = ttl
        self.claimed = False
        self.asked = 0
        self.answered = 0
        self.batch = scripts.batch
        self._client = client
        self._certain = certain
        self._witness = witness
        self._clock = clock
        self._held_until = 0.0

    @property
    def held(self) -> bool:
        """Whether this process has the lease: certainly, or as far as it knows; see ``certain``."""
        return self._clock.monotonic() < self._held_until if self._certain else self.claimed

    @property
    def milliseconds(self) -> int:
        """How long it lives, for scripts."""
        return int(self.ttl.total_seconds() * 1000)

    async def acquire(self) -> HeldElsewhere | None:
        """Acquire or renew it; None: this process has it.

        Raises:
            StoreError: see :func:`~poller.redis.client.translated`.
        """
        until = self.claim()
        left = await self.batch.run(self._call(_ACQUIRE, self.milliseconds))
        if left is None:
            self.grant(until)
            return None
        self.lose()
        return HeldElsewhere(timedelta(milliseconds=int(left)))

    async def renew(self) -> bool:
        """Keep it for another term. False: it is lost."""
        renewal = self.renewal()
        return self.renewed(renewal, await self.batch.run(self.renewal_call))

    def renewal(self) -> LeaseRenewal:
        """Note that a renewal is sent now; its answer is for :meth:`renewed`."""
        return LeaseRenewal(self.asked, self._term(), self.answered)

    @property
    def renewal_call(self) -> ScriptCall:
        """The script that renews it alone."""
        return self._call(_RENEW, self.milliseconds, *self.keys[1:])

    @property
    def keys(self) -> tuple[str, ...]:
        """Its key, and that of the hash which witnesses what was settled under it, if there is one."""
        return (self.key, self._witness) if self._witness else (self.key,)

    def renewed(self, renewal: LeaseRenewal, answer: object) -> bool:
        """Note the answer to a renewal; returns whether this process still has the lease."""
        kept = bool(answer) and not self._has_lost_settlements(renewal, answer)
        if kept:
            self._held_until = renewal.until
        elif renewal.asked == self.asked:  # else a later question is answered, or will be
            self.lose()
        return kept

    def _has_lost_settlements(self, renewal: LeaseRenewal, answer: object) -> bool:
        if not renewal.answered or not isinstance(answer, bytes):
            return False
        token, _, serial = answer.decode("utf-8", "replace").rpartition(" ")
        return token != self.token or int(serial) < renewal.answered

    async def release(self) -> None:
        """Release it, if this process has it."""
        self._held_until, self.answered = 0.0, 0
        self.claimed = self.claimed and self._certain
        await self.batch.run(self._call(_RENEW, 0))
        self.claimed = False

    def claim(self) -> float:
        """Note that a script is about to request the lease; returns the end of its term for :meth:`grant`."""
        if not self.held:  # another process may have settled since, and none of this process has to be there
            self.answered = 0
        self.claimed = True
        self.asked += 1
        return self._term()

    def grant(self, until: float) -> None:
        """Note that the script was answered: this process has the lease."""
        self._held_until, self.claimed = until, True

    def lose(self) -> None:
        """Note that this process does not have the lease; :meth:`claim` forgets what was settled under it."""
        self._held_until, self.claimed = 0.0, False

    async def fenced(self, consequence: str) -> Fenced:
        """The error of a script that found the lease lost; names the new owner where the store reports one."""
        self.lose()
        return Fenced(f"lost lease {self.key}{await _to_whom(self._client, self.key)}; {consequence}")

    def _call(self, script: str, milliseconds: int, *beside: str) -> ScriptCall:
        return ScriptCall(script, (self.key, *beside), (self.token, milliseconds))

    def _term(self) -> float:
        return self._clock.monotonic() + self.ttl.total_seconds()


class Releasable(Protocol):
    """What :func:`release_all` needs: a :class:`Lease`, or what has one."""

    @property
    def held(self) -> bool:
        """Whether this process has the lease."""
        ...

    async def release(self) -> None:
        """Release it."""
        ...


async def keep_renewed(leases: Iterable[Lease], *, ttl: timedelta, clock: Clock) -> None:
    """Renew those that are held, every third of their lifetime, until cancelled. All are of one store.

    While a single store does not answer, it is asked again every half a second: an outage that ends before the leases
    do costs none of them.

    **Invariants**

    - Many are renewed in one request: a busy event loop delays each answer, and one after the other the last would be
      too late.
    - An unavailable store does not end the loop: leases expire there by themselves, and the rounds report the error.
    - If one server of a cluster is unavailable or hangs, the leases on the others are renewed in time.
    """
    under_way: dict[str, asyncio.Task[bool]] = {}
    third, is_away = ttl.total_seconds() / 3, False
    try:
        while True:
            await clock.sleep(min(third, _AGAIN) if is_away else clock.aligned(third))
            held = [lease for lease in leases if lease.held]
            if not held or not held[0].batch.is_scattered:
                is_away = not await _renewed_in_turn(held)
                continue
            under_way = {place: task for place, task in under_way.items() if not task.done()}
            for place, some in _by_place(held).items():
                if place not in under_way:
                    under_way[place] = asyncio.create_task(_renewed_in_turn(some), name=f"leases of {place}")
    finally:
        await ended(*under_way.values())


def _by_place(leases: Iterable[Lease]) -> Mapping[str, Sequence[Lease]]:
    """The leases by the hash tags of their keys: those of one tag are on one server."""
    found: defaultdict[str, list[Lease]] = defaultdict(list)
    for lease in leases:
        found[lease.key.partition("}")[0]].append(lease)
    return found


async def _renewed_in_turn(leases: Sequence[Lease]) -> bool:
    """Renew these. Returns whether the store has answered; if not, the rest would wait for the same store."""
    for first in range(0, len(leases), _TOGETHER):
        if not await _renewed(leases[first : first + _TOGETHER]):
            return False
    return True


async def _renewed(leases: Sequence[Lease]) -> bool:
    """Renew these. Returns whether the store answered; if it refuses one, the next round of its feed says why."""
    renewals = [lease.renewal() for lease in leases]
    answers = await _renewal_answers(leases)
    for lease, renewal, answer in zip(leases, renewals, answers, strict=True):
        if not isinstance(answer, StoreError):
            lease.renewed(renewal, answer)
    return any(not isinstance(answer, StoreUnavailable) for answer in answers)


async def _renewal_answers(leases: Sequence[Lease]) -> Sequence[object]:
    """The answer to the renewal of each lease, or the StoreError in its place.

    A process may have thousands of leases, so a single script renews many; its calls for each would cost ten times as
    much.
    """
    first = leases[0]
    each = len(first.keys)
    if any(len(lease.keys) != each for lease in leases):
        return await first.batch.send([lease.renewal_call for lease in leases])
    tokens = (lease.token for lease in leases)
    keys = tuple(chain.from_iterable(lease.keys for lease in leases))
    try:
        answers: Sequence[object] = await first.batch.run(
            ScriptCall(_RENEW_MANY, keys, (first.milliseconds, each, *tokens))
        )
    except StoreRefused:  # on account of one of them: its own call says so
        return await first.batch.send([lease.renewal_call for lease in leases])
    except StoreError as error:
        return [error] * len(leases)
    return answers


async def release_all(leases: Iterable[Releasable], *, within: float = RELEASE_SECONDS) -> None:
    """Release those that are held, so that another process can go on without delay.

    Gives up when the store does not answer, at the latest after ``within`` seconds: leases expire by themselves.
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


_SHOWN: Final = 24  # characters of a machine's name


def member_name(clock: Clock) -> str:
    """A name for this process that no other one has: machine, process id, and something random."""
    machine = re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().partition(".")[0].lower())
    return f"{machine.strip('-')[:_SHOWN] or 'poller'}-{os.getpid()}-{clock.random.randbytes(2).hex()}"


def nonce_of(member: str, clock: Clock) -> str:
    """A new token for leases of this process; drawn each time."""
    return f"{member}/{clock.random.randbytes(16).hex()}"


def owner_of(lease: bytes | None) -> str | None:
    """The process that has a lease; None where it is free, or its value has an unknown form."""
    name, slash, _ = (lease or b"").decode("utf-8", "replace").partition("/")
    return name if slash and name else None


async def in_whose_hands(client: Redis, lease: str) -> str:
    """The owner of a lease, as the end of a message; empty where it is free or unknown."""
    owner = await _owner(client, lease)
    return f"; {owner} has it" if owner else ""


async def _to_whom(client: Redis, lease: str) -> str:
    owner = await _owner(client, lease)
    return f" to {owner}" if owner else ""


async def _owner(client: Redis, lease: str) -> str | None:
    with suppress(StoreError), translated(client):
        return owner_of(cast("bytes | None", await client.get(lease)))
    return None


_AT_ONCE: Final = 500  # in one pipeline; more would keep the store busy for others


class Held(msgspec.Struct, frozen=True):
    """A lease as read from the store.

    Attributes:
        value: what stands in it; None where it is free.
        seconds: for how long it lasts unless it is renewed, infinite where its key has no end; None where that was not
            asked.
    """

    value: bytes | None
    seconds: float | None = None

    @property
    def owner(self) -> str | None:
        """The process that has it, where its value names one."""
        return owner_of(self.value)

    @property
    def is_overlong(self) -> bool:
        """Whether it lasts longer than any may: taking it makes it end, see :data:`poller.store.scripts.TAKE`."""
        return self.seconds is not None and self.seconds * 1000 > LONGEST_LEASE_MS


async def held_leases(client: Redis, leases: Sequence[str], *, known: Collection[str]) -> list[Held | StoreUnavailable]:
    """Each of these leases; how long it lasts is asked where its owner is none of those that are ``known``.

    A key of another type counts as free: who acquires it learns what is wrong, and the other leases are read. If one
    server of a cluster is away, the error stands in the place of the leases there.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    values = await _asked(client, "get", leases)
    found = [value if isinstance(value, StoreUnavailable) else Held(value) for value in values]
    held = {number: one for number, one in enumerate(found) if isinstance(one, Held) and one.value is not None}
    strange = {number: one for number, one in held.items() if one.owner not in known}
    lefts = await _asked(client, "pttl", [leases[number] for number in strange])
    for (number, one), left in zip(strange.items(), lefts, strict=True):
        if isinstance(left, StoreUnavailable):
            found[number] = left
        else:
            found[number] = Held(None) if left == _NO_KEY else Held(one.value, left / 1000 if left >= 0 else math.inf)
    return found


async def _asked(client: Redis, command: str, keys: Sequence[str]) -> list[Any]:
    answers: list[Any] = []
    for first in range(0, len(keys), _AT_ONCE):
        with translated(client):
            asking = client.pipeline(transaction=False)
            for key in keys[first : first + _AT_ONCE]:
                getattr(asking, command)(key)
            found = await asking.execute(raise_on_error=False)
        answers += [_understood(client, answer) for answer in found]
    away = [answer for answer in answers if isinstance(answer, StoreUnavailable)]
    if away and len(away) == len(answers):
        raise away[0]
    return answers


def _understood(client: Redis, answer: Any) -> Any:
    """An answer; None for a key of another type, and StoreUnavailable in place of an answer that did not come."""
    if not isinstance(answer, Exception):
        return answer
    if str(answer).startswith("WRONGTYPE"):
        return None
    try:
        with translated(client):
            raise answer
    except StoreUnavailable as error:
        return error


_NO_KEY: Final = -2  # PTTL's answer for a key that is not there; -1 for one without an end
