"""The list of live processes, and this process's entry in it.

The list is read four times a second, and once a second by a process that is alone in it; listeners are called when it
has changed. The entry of this process is renewed every third of a lease's lifetime. While the store is unavailable, the
list stays as it was read last.

Whatever else a process reads again and again goes with that reading (``Membership.ask``): all of it is one request.

**Invariants**

- A process that crashes again and again takes no work from the others: when one has gone soon after it came, those that
  come are given no leases before they have been there for longer than such a one is (:meth:`Membership.steady`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Final, Protocol

import msgspec
import structlog
from redis.asyncio import Redis

from poller.clock import Clock
from poller.config.settings import Settings
from poller.control.orphans import ConfigurationDifference, claimed, differences, orphaned
from poller.errors import StoreError, StoreUnavailable
from poller.lifecycle import ended
from poller.store.keys import remembered_key
from poller.store.lease import RELEASE_SECONDS
from poller.store.members import MemberList, Members
from poller.store.recovery import known_feeds
from poller.store.scripts import ScriptQuestion, ScriptQuestions
from poller.telemetry.logs import LogOnce

LOOK_SECONDS: Final = 0.25
_ALONE: Final = 4  # times as long: no other process hands over leases, and commands may wait for a second
_AFTER_FAULT: Final = 5.0  # seconds
_WHO: Final = "the list of processes"
_SOON: Final = 3  # terms; one that has gone sooner after it came may do so again
_PROBATION: Final = _SOON  # terms; one that crashes within its second term is listed for so long

_SEARCH_SECONDS: Final = 5.0  # between two reads of the known feeds, while the list of processes stays the same
ADVICE: Final = (
    "it was renamed or dropped: what waits for subscriptions is delivered, and nothing new comes; "
    "`poller feeds forget {feed}` ends it. A feed that is to go on keeps its name"
)


_log = structlog.get_logger("poller.members")


class StoreObserver(Protocol):
    """Logs an unavailable store once for all; see :class:`poller.daemon.health.StoreMonitor`."""

    @property
    def away(self) -> bool:
        """Whether the store is logged as unavailable."""
        ...

    def failed(self, who: str, text: str) -> None:
        """A command of ``who`` has failed."""
        ...

    def worked(self, who: str) -> None:
        """Commands of ``who`` work again, or ``who`` has ended."""
        ...


class MemberRank(msgspec.Struct, frozen=True):
    """The place of a process among those with the same role.

    Attributes:
        names: of all these processes, in order.
        place: of this process, from 0.
    """

    names: tuple[str, ...]
    place: int


class Membership:
    """This process's entry in the list, and its view of the list. Used within one event loop.

    Attributes:
        name: of this process.
        seen: the list as it was read last.
        ask: sends a script with the next reading of the list, within :data:`LOOK_SECONDS`, or a second; see
            :meth:`poller.store.scripts.ScriptQuestions.ask`.
    """

    def __init__(
        self,
        members: Members,
        *,
        ttl: timedelta,
        watch: StoreObserver,
        clock: Clock,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        """Begin outside the list.

        Args:
            members: the list.
            ttl: the lifetime of an entry.
            watch: is informed when the store fails.
            clock: of this process.
            look_seconds: between two reads, if other processes are there.
        """
        self.name = members.name
        self.seen = MemberList()
        self._members = members
        self._ttl = ttl.total_seconds()
        self._beat_seconds = self._ttl / 3
        self._came: dict[str, float] = {}
        self._unsteady_since = self._unsteady_until = -math.inf
        self._watch = watch
        self._clock = clock
        self._look_seconds = look_seconds
        self._roles: set[str] = set()
        self._said: frozenset[str] = frozenset()
        self._beat_at = clock.monotonic()
        self._tell = False
        self._questions = ScriptQuestions()
        self.ask = self._questions.ask
        self._is_away = False
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._listeners: list[Callable[[], None]] = [self._changed.set]
        self._failure = LogOnce(_log, "the other processes cannot be seen")

    @property
    def error(self) -> str | None:
        """Why the list cannot be read though the store answers; None: it can."""
        return self._failure.error

    def listen(self, changed: Callable[[], None]) -> None:
        """Call this function whenever the list has changed, or leases may be free."""
        self._listeners.append(changed)

    def join(self, role: str) -> None:
        """Add a role to this process's entry."""
        self._roles.add(role)
        self._wake.set()

    def leave(self, role: str) -> None:
        """Remove a role: other processes may acquire the leases that this one releases."""
        self._roles.discard(role)
        self._wake.set()

    async def joined(self, role: str) -> None:
        """Wait until the list shows this process with this role, so that others see it."""
        while self.among(role) is None:
            self._changed.clear()
            await self._changed.wait()

    def announce_release(self) -> None:
        """Make all other processes check leases now: this process has released some."""
        self._tell = True
        self._wake.set()

    def among(self, role: str) -> MemberRank | None:
        """This process's place among those with this role; None: it is not in the list."""
        names = self.seen.doing(role)
        return MemberRank(names, names.index(self.name)) if self.name in names else None

    def steady(self, role: str) -> MemberRank | None:
        """As :meth:`among`, for assigning leases: without processes on probation, see the invariants."""
        names, now = self.seen.doing(role), self._clock.monotonic()
        if now < self._unsteady_until:
            since, before = self._unsteady_since, now - _PROBATION * self._ttl
            names = tuple(one for one in names if one == self.name or self._came[one] < max(since, before))
        return MemberRank(names, names.index(self.name)) if self.name in names else None

    def listed(self, role: str) -> frozenset[str] | None:
        """The feeds of all other processes with this role; None: unknown, one of them does not list its feeds."""
        return self.seen.listed(name for name in self.seen.doing(role) if name != self.name)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep this process in the list while the block runs."""
        task = asyncio.create_task(self._run(), name="members")
        try:
            yield
        finally:
            await ended(task)
            for one in self._questions.taken():
                one.answer.cancel()
            with suppress(StoreError, TimeoutError):
                async with asyncio.timeout(RELEASE_SECONDS):
                    await self._members.leave(self.seen)

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._met()
                if self._is_away:
                    self._is_away = False
                    self._watch.worked(_WHO)
                self._failure.worked()
            except StoreUnavailable as error:
                self._is_away = True
                self._watch.failed(_WHO, str(error))
                await self._clock.sleep(self._look_seconds)
            except StoreError as error:
                self._failure.failed(str(error))
                await self._clock.sleep(self._look_seconds)
            except Exception:  # noqa: BLE001 -- without the list, commands and subscriptions would be unread, silently
                _log.exception("the other processes cannot be seen")
                await self._clock.sleep(_AFTER_FAULT)
            is_alone = self.seen.roles.keys() == {self.name}
            seconds = self._look_seconds * (_ALONE if is_alone else 1)
            await self._clock.wait(self._wake, self._clock.aligned(seconds) if is_alone else seconds)

    async def _met(self) -> None:
        tell, self._tell = self._tell, False
        questions = self._questions.taken()
        try:
            fresh = await self._asked(frozenset(self._roles), tell=tell, besides=questions)
        except StoreError:
            self._tell |= tell
            raise
        except Exception as error:
            for one in questions:
                one.settle(StoreError(f"the list of processes cannot be read: {type(error).__name__}"))
            raise
        finally:
            for one in questions:  # without effect on what is settled
                one.answer.cancel()
        if fresh is not self.seen:
            self._compare(fresh)
            self.seen = fresh
            for changed in self._listeners:
                changed()

    def _compare(self, fresh: MemberList) -> None:
        """Note who has come, and whether one has gone soon after that."""
        now = self._clock.monotonic()
        for name in self._came.keys() - fresh.roles.keys():
            if now - self._came.pop(name) < _SOON * self._ttl and name != self.name:
                self._unsteady_since = now if now > self._unsteady_until else self._unsteady_since
                self._unsteady_until = now + (_SOON + 1) * self._ttl  # with a term in which it may come again
        for name in fresh.roles:  # those of the first list may have been there for long
            self._came.setdefault(name, now if self.seen.version else -math.inf)

    async def _asked(self, roles: frozenset[str], *, tell: bool, besides: Sequence[ScriptQuestion]) -> MemberList:
        missing = bool(roles) and self.name not in self.seen.roles
        if roles == self._said and not missing and self._clock.monotonic() < self._beat_at:
            return await self._members.read(self.seen, tell=tell, besides=besides)
        beat_at = self._clock.monotonic() + self._beat_seconds
        if roles:
            found = await self._members.beat(roles, self.seen, tell=tell, besides=besides)
        else:
            found = await self._members.leave(self.seen, tell=tell, besides=besides)
        self._said, self._beat_at = roles, beat_at
        return found


class Configurations:
    """The configurations as one process sees them. Used within one event loop.

    Attributes:
        orphans: the orphaned feeds.
        undelivered: feeds that a live process has, but no delivering one.
        claimed: the feeds that a live process has; None: unknown.
    """

    def __init__(self, settings: Settings, client: Redis, membership: Membership, *, clock: Clock) -> None:
        """Begin without information."""
        self.orphans: tuple[str, ...] = ()
        self.undelivered: tuple[str, ...] = ()
        self.claimed: frozenset[str] | None = None
        self.version = 0
        self._own = settings.feed_ids
        self._client = client
        self._clock = clock
        self._key = remembered_key(settings.redis.prefix)
        self._membership = membership
        self._seen: MemberList | None = None
        self._look_at = 0.0
        self._reported: frozenset[str] = frozenset()
        self._differences: list[ConfigurationDifference] = []

    async def refresh(self) -> int:
        """Read the configurations if that is due. Returns a number that changes with each read.

        Raises:
            StoreError: see :func:`~poller.redis.client.translated`.
        """
        seen = self._membership.seen
        if self._membership.name not in seen.roles or (seen is self._seen and self._clock.monotonic() < self._look_at):
            return self.version
        found = await known_feeds(self._client, self._key)
        self._seen, self._look_at, self.version = seen, self._clock.monotonic() + _SEARCH_SECONDS, self.version + 1
        self.claimed = claimed(seen, self._own)
        self.orphans = orphaned(found, seen, self._own)
        delivered = claimed(seen, self._own if "deliver" in seen.roles[self._membership.name] else (), role="deliver")
        self.undelivered = (
            ()
            if None in (self.claimed, delivered)
            else tuple(sorted((self.claimed or frozenset()) - (delivered or frozenset())))
        )
        self._report(seen)
        return self.version

    def _report(self, seen: MemberList) -> None:
        for feed in self.orphans:
            if feed not in self._reported:
                _log.warning("orphaned feed", feed=feed, advice=ADVICE.format(feed=feed))
        self._reported = frozenset(self.orphans)
        found = differences(seen.configurations)
        for one in found:
            if one not in self._differences:
                _log.warning("configurations differ", what=one.what, processes=one.processes, reason=one.text)
        self._differences = found
