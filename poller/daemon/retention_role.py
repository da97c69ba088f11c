"""The retention role: trims streams, reports lost events, and keeps snapshots up.

About once a minute, and after many events, the process with a feed's lease checks the feed's stream. The cost of a
check grows with the number of subscriptions to the feed, not with its events.

**Invariants**

- Only the process with the feed's lease trims its stream.
- A failure here fails no round. It is logged, and the next check tries again.
- An erasure that is complete and was not announced is announced before an upkeep, which is at most a day later.
- The upkeep of snapshots (:mod:`poller.store.upkeep`) works for a tenth of a second at a time, beside the rounds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Final, Protocol

import msgspec
import structlog
from redis.asyncio import Redis

from poller.clock import Clock
from poller.config.settings import Settings
from poller.control.erasure import announce_completed
from poller.control.subscriptions import filed, holds_unlisted
from poller.daemon.cluster.membership import Configurations
from poller.delivery.operational_events import OperationalEvent, OperationType, announce
from poller.errors import Fenced, StoreError, StoreUnavailable
from poller.lifecycle import ended, finished
from poller.store.consumer_state import GracePeriods, grace_periods
from poller.store.keys import ConsumerKeys, FeedKeys, SubscriptionKeys
from poller.store.lease import RELEASE_SECONDS, Lease, LeaseScripts, nonce_of
from poller.store.registry import Registry
from poller.store.retention import (
    RetentionRule,
    StreamOverrun,
    Trimmer,
    TrimScripts,
    WatchedConsumer,
    looks,
    pressing,
)
from poller.store.scripts import ScriptBatch
from poller.store.subscriptions import Subscriptions, outline_of
from poller.store.upkeep import SnapshotUpkeep, UpkeepScripts
from poller.telemetry.logs import LogOnce

_LOOK_AGAIN: Final = timedelta(seconds=1)
_LONGEST: Final = timedelta(minutes=1)
_TOGETHER: Final = 100  # streams in one request; each takes the store some ten microseconds
_MAINTAINED_AT_ONCE: Final = 10  # feeds whose upkeep is looked at in one turn: a start with thousands is busy enough
_LEASES_AGAIN: Final = 10.0  # seconds between two checks of all leases; each takes a while with thousands of feeds
_PART_OF_AGE: Final = 4
_PART_OF_SIZE: Final = 20

_log = structlog.get_logger("poller.retention")


class PolledStream(Protocol):
    """A feed that this process polls; see :class:`poller.store.feed.FeedStore`."""

    @property
    def held(self) -> bool:
        """Whether this process has the feed's lease, as far as it knows."""
        ...

    @property
    def appended(self) -> int:
        """Bytes of events that this process has committed."""
        ...

    @property
    def nonce(self) -> str:
        """The fencing token of the lease."""
        ...


class MaintainedStore(PolledStream, Protocol):
    """The store of a feed that this process polls."""

    wants_dictionary: bool


class RetentionRole:
    """Trims the streams of some feeds."""

    def __init__(
        self,
        settings: Settings,
        client: Redis,
        feeds: Mapping[str, MaintainedStore],
        configurations: Configurations | None = None,
        *,
        shebang: str,
        clock: Clock,
        member: str = "",
        let_go: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin with the feeds that this process polls.

        Args:
            settings: the configuration.
            client: of the store, without retries of its own.
            feeds: those that this process polls, by ``SOURCE/NAME``.
            configurations: says which feeds no process has; None: orphaned feeds are not trimmed.
            shebang: the first line of scripts.
            clock: the store's.
            member: this process's name.
            let_go: is called when the lease of a feed, acquired for trimming, was released.
        """
        rule, prefix = settings.retention, settings.redis.prefix
        self._settings = settings
        self._client = client
        self._registry = Registry(client, SubscriptionKeys.of(prefix))
        self._rule = RetentionRule(rule.age, rule.max_bytes)
        scripts = TrimScripts(client, shebang=shebang)
        self._scripts = scripts
        self._leases = LeaseScripts(client, shebang=shebang)
        self._upkeep_scripts = UpkeepScripts(client, shebang=shebang)
        self._looking = ScriptBatch(client, shebang=shebang)
        self._configurations = configurations
        self._clock = clock
        self._member = member
        self._let_go = let_go
        self._orphans: dict[str, _StreamState] = {}
        self._leases_due_at = clock.monotonic()
        self._maintained = [
            _MaintainedFeed(
                feed,
                SnapshotUpkeep(
                    client,
                    self._upkeep_scripts,
                    FeedKeys.of(prefix, name),
                    nonce=feed.nonce,
                    removed=rule.removed,
                    clock=clock,
                ),
                partial(announce_completed, client, prefix, FeedKeys.of(prefix, name), clock=clock),
                name,
                clock,
            )
            for name, feed in feeds.items()
        ]
        self._feeds = [
            _StreamState(
                FeedKeys.of(prefix, name),
                feed,
                Trimmer(client, scripts, prefix=prefix, feed=name, nonce=feed.nonce),
                self._rule,
                clock,
            )
            for name, feed in feeds.items()
        ]

    async def run(self, stop: asyncio.Event) -> None:
        """Check and trim the streams regularly until ``stop`` is set."""
        looking = asyncio.create_task(self._keep_looking(), name="retention")
        stopping = asyncio.create_task(stop.wait())
        try:  # do not wait for a store that hangs
            await asyncio.wait({looking, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if looking.done():  # it should not have ended before the stop; its error is raised
                looking.result()
        finally:
            await ended(looking, stopping)

    async def _keep_looking(self) -> None:
        while True:
            await self.trim_due()
            await self.maintain_due()
            await self._clock.sleep(self._clock.aligned(_LOOK_AGAIN.total_seconds()))

    async def trim_due(self) -> None:
        """Trim the streams that are due, and report trimmed events that were still needed."""
        now = self._clock.monotonic()
        due = [feed for feed in self._feeds if feed.due_at <= now or feed.store.appended > feed.most_appended]
        due = [feed for feed in due if feed.store.held]
        for start in range(0, len(due), _TOGETHER):
            some = due[start : start + _TOGETHER]
            for feed in some:
                feed.looked()
            for feed in await self._pressing(some):
                await self._retain(feed)
        await self._look_at_orphans()

    async def maintain_due(self) -> None:
        """Continue the upkeep of the snapshots that are due, of a few feeds."""
        now = self._clock.monotonic()
        if now >= self._leases_due_at:
            self._leases_due_at = now + _LEASES_AGAIN
            for feed in self._maintained:
                feed.check_lease(now)
        due = [feed for feed in self._maintained if feed.due_at <= now and feed.check_lease(now)]
        for feed in due[:_MAINTAINED_AT_ONCE]:
            await feed.step()

    async def _pressing(self, feeds: Sequence[_StreamState]) -> list[_StreamState]:
        """Those of these streams that may have to be trimmed, or of which an overrun is to be reported.

        Most streams are neither: one request finds that of many. One that cannot be read is among those that are
        returned, for its own look says why.
        """
        found = await looks(self._looking, [feed.keys for feed in feeds])
        oldest, most = self._rule.oldest(self._clock.now()), self._rule.max_bytes
        pressing_ones: list[_StreamState] = []
        for feed, one in zip(feeds, found, strict=True):
            if isinstance(one, StoreUnavailable):  # an unavailable store is logged once for all feeds
                _log.debug("not trimmed", feed=feed.name, error=str(one))
            elif isinstance(one, StoreError) or one.has_news or pressing(one.extent, oldest=oldest, max_bytes=most):
                pressing_ones.append(feed)
            else:
                feed.failure.worked()
        return pressing_ones

    async def _look_at_orphans(self) -> None:
        """Trim the streams of feeds that no process has configured; the process that acquires the lease does it."""
        if self._configurations is None:
            return
        with suppress(StoreError):  # logged by the other roles
            await self._configurations.refresh()
        names = self._configurations.orphans
        self._orphans = {name: self._orphans.get(name) or self._orphan(name) for name in names}
        for feed in self._orphans.values():
            if feed.due_at <= self._clock.monotonic():
                feed.looked()
                await self._retain_orphan(feed.keys.lease, feed)

    def _orphan(self, name: str) -> _StreamState:
        nonce = nonce_of(self._member, self._clock)
        prefix = self._settings.redis.prefix
        trimmer = Trimmer(self._client, self._scripts, prefix=prefix, feed=name, nonce=nonce)
        return _StreamState(FeedKeys.of(prefix, name), _OrphanedStream(nonce), trimmer, self._rule, self._clock)

    async def _retain_orphan(self, lease: str, feed: _StreamState) -> None:
        ttl = self._settings.lease.ttl
        own = Lease(self._client, self._leases, lease, token=feed.nonce, ttl=ttl, clock=self._clock)
        retaining = asyncio.create_task(self._retain_under(own, feed), name=f"retention of {feed.name}")
        try:
            await asyncio.shield(retaining)
        except asyncio.CancelledError:  # a lease that was acquired is released
            await finished(retaining, within=RELEASE_SECONDS)
            raise

    async def _retain_under(self, own: Lease, feed: _StreamState) -> None:
        try:
            if await own.acquire() is not None:
                return  # another process is trimming it, or polls the feed
            await self._retain(feed)
            await own.release()
            self._let_go()
        except StoreError as error:  # the lease expires by itself
            _log.debug("not trimmed", feed=feed.name, error=str(error))

    async def _retain(self, feed: _StreamState) -> None:
        try:
            gone = await feed.trimmer.trim(self._rule, lambda: self._known(feed.name), now=self._clock.now())
            if gone:
                _log.info("trimmed", feed=feed.name, events=gone)
            for overrun in await feed.trimmer.unannounced():
                await self._report_overrun(feed.name, overrun)
                await feed.trimmer.mark_announced(overrun)
            feed.failure.worked()
        except Fenced:
            return  # the process that has the lease does it
        except StoreUnavailable as error:  # an unavailable store is logged once for all feeds
            _log.debug("not trimmed", feed=feed.name, error=str(error))
        except StoreError as error:
            feed.failure.failed(str(error))
        except Exception:  # noqa: BLE001 -- a fault of the program here must not end the rounds beside it
            _log.exception("not trimmed", feed=feed.name)

    async def _known(self, feed: str) -> dict[str, WatchedConsumer]:
        kept, prefix = await self._registry.all(), self._settings.redis.prefix
        periods = await grace_periods(self._client, prefix, [feed])
        return watched(feed, kept, filed(self._settings), prefix, periods[feed])

    async def _report_overrun(self, feed: str, overrun: StreamOverrun) -> None:
        details: dict[str, str | int | None] = {
            "feed": feed,
            "group": overrun.group,
            "events": overrun.events,
            "sequence": overrun.sequence,
            "last_sequence": overrun.last_sequence,
            "first": overrun.first,
        }
        what = "requested by a replay" if overrun.replay else "not delivered yet" if overrun.subscription else "needed"
        reason = f"the stream of {feed} outgrew retention.max_bytes: the oldest events went, though they were {what}"
        _log.error("overrun", subscription=overrun.subscription, **details, reason=reason)
        subject = overrun.subscription or feed
        announcement = OperationalEvent(OperationType.SUBSCRIPTION_OVERRUN, subject, overrun.at, reason, details)
        await announce(self._client, self._settings.redis.prefix, announcement)


class _OrphanedStream(msgspec.Struct, frozen=True):
    """The stream of an orphaned feed, which no process polls."""

    nonce: str
    held: bool = True
    appended: int = 0


class _MaintainedFeed:
    """A feed's snapshots and erasures, and the time of their next upkeep.

    Attributes:
        due_at: when the upkeep is due, by the monotonic clock.
    """

    def __init__(
        self,
        store: MaintainedStore,
        upkeep: SnapshotUpkeep,
        announce: Callable[[], Awaitable[None]],
        name: str,
        clock: Clock,
    ) -> None:
        self._store = store
        self._upkeep = upkeep
        self._announce = announce
        self._goes_on = False
        self.due_at = clock.monotonic()
        self._name = name
        self._clock = clock
        self._failure = LogOnce(_log, "snapshots not kept up", feed=name)

    def check_lease(self, now: float) -> bool:
        """Whether this process has the lease. Without it the upkeep is broken off, and is due once it has it again.

        Args:
            now: by the monotonic clock.
        """
        if not self._store.held:
            self._upkeep.abandon()
            self.due_at = now
            return False
        return True

    async def step(self) -> None:
        """Continue; a failure is tried again later."""
        wait = _LONGEST
        try:
            if not self._goes_on:
                await self._announce()
            self._goes_on = await self._upkeep.step()
            if self._goes_on:
                wait = timedelta(0)
            elif not self._upkeep.awaits_round:
                wait = self._upkeep.interval
            self._failure.worked()
        except (Fenced, StoreUnavailable) as error:  # the process that has the lease does it; logged by other roles
            _log.debug("snapshots not kept up", feed=self._name, error=str(error))
        except StoreError as error:
            self._failure.failed(str(error))
        except Exception:  # noqa: BLE001 -- a fault of the program here must not end the rounds beside it
            _log.exception("snapshots not kept up", feed=self._name)
        self._store.wants_dictionary = self._upkeep.wants_dictionary
        self.due_at = self._clock.monotonic() + wait.total_seconds()


class _StreamState:
    """A feed's stream, and the time of its next check.

    Attributes:
        store: of the feed.
        due_at: when the check is due, by the monotonic clock.
        most_appended: if more bytes than these have been appended, the check is due, too.
    """

    def __init__(
        self, keys: FeedKeys, store: PolledStream, trimmer: Trimmer, rule: RetentionRule, clock: Clock
    ) -> None:
        self.keys = keys
        self.name = name = keys.feed
        self.nonce = store.nonce
        self.trimmer = trimmer
        self.failure = LogOnce(_log, "not trimmed", feed=name)
        self.store = store
        self._clock = clock
        self._every = max(min(rule.age / _PART_OF_AGE, _LONGEST), _LOOK_AGAIN).total_seconds()
        self._much = rule.max_bytes // _PART_OF_SIZE
        self.due_at = clock.monotonic()
        self.most_appended = self._much

    def looked(self) -> None:
        """Schedule the next check."""
        self.due_at, self.most_appended = self._clock.monotonic() + self._every, self.store.appended + self._much


def watched(
    feed: str, kept: Subscriptions, file: Sequence[tuple[str, bytes]], prefix: str, periods: GracePeriods
) -> dict[str, WatchedConsumer]:
    """The subscriptions to a feed, by id: those that are registered, paused or not, and those of the file.

    Those that list the feed no more are among them until a process that delivers has noted that nothing waits there.

    Args:
        feed: ``SOURCE/NAME``.
        kept: the registry.
        file: the subscriptions of the configuration, id and settings in JSON; some may not be registered yet.
        prefix: of the store's keys.
        periods: of the feed, read after the registry.
    """
    outlines = {name: outline_of(text) for name, text in file}
    outlines |= {name: one.outline for name, one in kept.registered.items()}
    after = {name: one.new_after(feed) for name, one in kept.registered.items()}
    return {
        name: WatchedConsumer(ConsumerKeys.of(prefix, feed, name), one.is_from_earliest, after.get(name, ""))
        for name, one in outlines.items()
        if one.wants(feed) or (name in kept.registered and holds_unlisted(kept, name, feed, periods))
    }
