"""The list of live processes, and this process's entry in it.

Four times a second the list is read by one small command; listeners are called when it has changed. Every third of a
lease's lifetime the entry of this process is renewed. While the store is away the list stays as it was read last.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
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
from poller.telemetry.logs import LogOnce

LOOK_SECONDS: Final = 0.25
_WHO: Final = "the list of processes"

_SEARCH_SECONDS: Final = 5.0  # between two readings of the known feeds, while the processes stay the same
ADVICE: Final = (
    "it was renamed or dropped: what waits for subscriptions is delivered, and nothing new comes; "
    "`poller feeds forget {feed}` ends it. A feed that is to go on keeps its name"
)


_log = structlog.get_logger("poller.members")


class StoreObserver(Protocol):
    """Logs that the store is away, once for all; see :class:`poller.daemon.health.StoreMonitor`."""

    @property
    def away(self) -> bool:
        """Whether the store is known to be away, and logged."""
        ...

    def failed(self, who: str, text: str) -> None:
        """It did not do what ``who`` asked."""
        ...

    def worked(self, who: str) -> None:
        """It did, or ``who`` asks no more."""
        ...


class MemberRank(msgspec.Struct, frozen=True):
    """Where a process stands among those that do the same.

    Attributes:
        names: all of them, in their order.
        place: its own, from 0.
    """

    names: tuple[str, ...]
    place: int


class Membership:
    """One process' part in the list. Used within one event loop."""

    def __init__(
        self,
        members: Members,
        *,
        ttl: timedelta,
        watch: StoreObserver,
        clock: Clock,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        """Take what it works with.

        Args:
            members: the list.
            ttl: how long a beat lasts.
            watch: is informed when the store is away.
            clock: of this process.
            look_seconds: between two looks.
        """
        self.name = members.name
        self.seen = MemberList()
        self._members = members
        self._beat_seconds = ttl.total_seconds() / 3
        self._watch = watch
        self._clock = clock
        self._look_seconds = look_seconds
        self._roles: set[str] = set()
        self._said: frozenset[str] = frozenset()
        self._beat_at = clock.monotonic()
        self._tell = False
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._listeners: list[Callable[[], None]] = [self._changed.set]
        self._failure = LogOnce(_log, "the other processes cannot be seen")

    def listen(self, changed: Callable[[], None]) -> None:
        """Call this whenever the list is another one, or leases may be free."""
        self._listeners.append(changed)

    def join(self, role: str) -> None:
        """Do this from now on."""
        self._roles.add(role)
        self._wake.set()

    def leave(self, role: str) -> None:
        """Do it no more: the others may take what this process lets go of."""
        self._roles.discard(role)
        self._wake.set()

    async def joined(self, role: str) -> None:
        """Wait until the list says that this process does this: from then on the others see it."""
        while self.among(role) is None:
            self._changed.clear()
            await self._changed.wait()

    def announce_release(self) -> None:
        """Have all others look, now: this process has let go of something."""
        self._tell = True
        self._wake.set()

    def among(self, role: str) -> MemberRank | None:
        """Where this process stands among those that do this; None: it is not in the list."""
        names = self.seen.doing(role)
        return MemberRank(names, names.index(self.name)) if self.name in names else None

    def listed(self, role: str) -> frozenset[str] | None:
        """The feeds that the other processes list that do this; None: any, for one of them does not say."""
        return self.seen.listed(name for name in self.seen.doing(role) if name != self.name)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Be in the list for the time of the block, and out of it afterwards."""
        task = asyncio.create_task(self._run(), name="members")
        try:
            yield
        finally:
            await ended(task)
            with suppress(StoreError, TimeoutError):
                async with asyncio.timeout(RELEASE_SECONDS):
                    await self._members.leave(self.seen)

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._met()
                self._watch.worked(_WHO)
                self._failure.worked()
            except StoreUnavailable as error:
                self._watch.failed(_WHO, str(error))
                await self._clock.sleep(self._look_seconds)
            except StoreError as error:
                self._failure.failed(str(error))
                await self._clock.sleep(self._look_seconds)
            await self._clock.wait(self._wake, self._look_seconds)

    async def _met(self) -> None:
        tell, self._tell = self._tell, False
        try:
            fresh = await self._asked(frozenset(self._roles), tell=tell)
        except StoreError:
            self._tell |= tell
            raise
        if fresh is not self.seen:
            self.seen = fresh
            for changed in self._listeners:
                changed()

    async def _asked(self, roles: frozenset[str], *, tell: bool) -> MemberList:
        missing = bool(roles) and self.name not in self.seen.roles
        if roles == self._said and not missing and self._clock.monotonic() < self._beat_at:
            return await self._members.read(self.seen, tell=tell)
        beat_at = self._clock.monotonic() + self._beat_seconds
        if roles:
            found = await self._members.beat(roles, self.seen, tell=tell)
        else:
            found = await self._members.leave(self.seen, tell=tell)
        self._said, self._beat_at = roles, beat_at
        return found


class Configurations:
    """The configurations as one process sees them. Used within one event loop.

    Attributes:
        orphans: the orphaned feeds.
        undelivered: feeds that a live process has, and none of those that deliver.
        claimed: the feeds that a live process has; None: it may be any.
    """

    def __init__(self, settings: Settings, client: Redis, membership: Membership, *, clock: Clock) -> None:
        """Nothing is known yet."""
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
        """Look again where that is due; a number that is another one after each look.

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
