"""The delivering role: runs this process's share of all active subscriptions.

The version of the registry is read every second, so a change by a command or another process takes effect here within a
second. A changed subscription is stopped in order and started with its new settings; the others continue meanwhile. A
number beside the version says that a command has scheduled deliveries or a replay. A version lower than before, or the
same one of another change, means that the store has lost the registry or its last changes. These readings go with that
of the list of processes, in one request.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import datetime, timedelta
from fractions import Fraction
from functools import partial
from itertools import chain
from typing import Final

import structlog
from redis.asyncio import Redis

from poller.clock import Clock, rfc3339
from poller.config.settings import Settings
from poller.control.orphans import waiting_at
from poller.control.subscriptions import end_unlisted_feeds, filed, filed_ends, health_resumed
from poller.daemon.cluster.leases import LeaseBalancer
from poller.daemon.cluster.membership import Configurations, Membership, StoreObserver
from poller.daemon.subscription_runner import RunnerContext, SubscriptionRunner, active_inputs
from poller.delivery.feed_consumer import GATHER, SharedTimer
from poller.delivery.operational_events import OperationalEvent, OperationType, announce
from poller.errors import StoreError, StoreUnavailable
from poller.http.server import connections_for
from poller.lifecycle import ended, first_of, unless_stopped
from poller.limits import ConnectionBudget
from poller.redis.errors import let_in
from poller.store.consumer_state import ConsumerScripts
from poller.store.keys import FeedKeys, MemberKeys, SubscriptionKeys
from poller.store.lease import Lease, keep_renewed
from poller.store.members import ListedSubscriptions, MemberList, members_seen
from poller.store.registry import Registry, RegistryVersions
from poller.store.scripts import ScriptSender
from poller.store.session import OpenStore, blocking_client
from poller.store.stream import arrivals
from poller.store.subscriptions import (
    NO_ENDS,
    NO_SUBSCRIPTIONS,
    UNLISTED,
    SinkPauses,
    Subscriptions,
    file_differences,
    older_subscriptions,
    plan_file_pauses,
)
from poller.telemetry.logs import LogOnce

_log = structlog.get_logger("poller.delivery")


class FileSubscriptions:
    """The subscriptions of this process's file in the registry that it shares with others.

    **Invariants**

    - They are registered at the start, when the other processes can see what this one lists, and with its settings.
    - Later one is registered only if the registry has none of its id, as after the removal of one that was added at run
      time under the same id and came back with an older copy of the registry.
    - Pauses of file subscriptions are decided whenever the registry or the list of processes has changed. The rule is
      :func:`poller.store.subscriptions.plan_file_pauses`.
    """

    def __init__(
        self, settings: Settings, registry: Registry, client: Redis, membership: Membership, *, clock: Clock
    ) -> None:
        """Take what it works with.

        Args:
            settings: the configuration.
            registry: of the subscriptions.
            client: of the store.
            membership: this process among the others.
            clock: the store's.
        """
        self.file = filed(settings)
        self._settings = settings
        self._registry = registry
        self._client = client
        self._keys = MemberKeys.of(settings.redis.prefix)
        self._membership = membership
        self._clock = clock
        self._settled: tuple[Subscriptions, MemberList] | None = None
        self._before = NO_SUBSCRIPTIONS

    def lost(self, before: Subscriptions) -> None:
        """Note what the registry held before the store lost it: what cannot come back yet comes back as it was."""
        self._before = before

    async def register(self) -> None:
        """Register the file's subscriptions. Call it once the other processes can see this one.

        Raises:
            ConfigurationError: two subscriptions have one id.
            StoreError: the store is unavailable.
        """
        await self._registry.sync(self.file, self._clock.now(), ends=await self.ends())

    async def ends(self) -> dict[str, str]:
        """The last entry of each feed, to be read before its subscriptions are written.

        Raises:
            StoreError: the store is unavailable.
        """
        return await filed_ends(self._registry, self._settings)

    async def reconcile(self, kept: Subscriptions) -> bool:
        """Pause the file subscriptions that no live process lists, and resume those that one lists again.

        Those of this process that are not registered are registered before.

        Costs nothing while neither the registry nor the list of processes changes.

        Args:
            kept: the registry, as it was read last.

        Returns:
            Whether the registry has changed.

        Raises:
            StoreError: the store is unavailable.
        """
        seen = self._membership.seen
        if self._settled is not None and self._settled[0] is kept and self._settled[1] is seen:
            return False
        is_complete = not await self._add_missing(kept)
        writes, _ = plan_file_pauses(kept, self._listed(seen), self._clock.now())
        if not writes:
            self._settled = (kept, seen) if is_complete else None
            return not is_complete
        changed = await self._registry.reconcile(self._listed_now, self._clock.now())
        for name in changed.resumed:
            _log.info("subscription resumed", subscription=name, reason="a running process lists it in its file again")
        for name in changed.paused:
            _log.warning(
                "subscription paused",
                subscription=name,
                by="removed",
                reason=UNLISTED,
                advice=f"poller subscriptions remove {name} drops it and what waits for it",
            )
        return True

    async def _add_missing(self, kept: Subscriptions) -> bool:
        """Register those of the file that are not registered; returns whether there were some."""
        origins = {name: one.origin for name, _ in self.file if (one := kept.registered.get(name)) is not None}
        if len(origins) < len(self.file):
            ends = await self.ends()
            for name in await self._registry.add_missing(self.file, self._clock.now(), self._before, ends=ends):
                _log.info("subscription registered", subscription=name, reason="it is in the configuration file")
            return True
        if "run" not in origins.values():
            self._before = NO_SUBSCRIPTIONS
        return False

    async def _listed_now(self) -> ListedSubscriptions:
        return self._listed(await members_seen(self._client, self._keys))

    def _listed(self, seen: MemberList) -> ListedSubscriptions:
        """The subscriptions listed by live processes; unknown while this process itself is missing in the list."""
        return seen.subscriptions if self._membership.name in seen.roles else ListedSubscriptions()


# Recovery of the registry after the store has lost it: a lower version means that it is gone or older; another change
# where one was read, that it was older and has changed since; the same change with fewer subscriptions, pauses or
# secrets, that a part of it is gone. File subscriptions are restored as they were: as old and as paused, so that none
# starts from the beginning, and with the settings that they had, for the file of this process may be an older one. One
# whose id is that of one of run time in the older copy is left out and named: the others need not wait for an operator
# to remove that one. It is registered, as it was, as soon as its id is free.
# Those added at run time stay lost, for only their owner may know the secret; they are announced. Pauses and secrets of
# subscriptions that are still there are restored, but no pause that an operator has ended since. A pause of an older
# registry that had been ended is ended again, and this is announced: the subscription
# would be silent against the last command. Other differences of an older registry are named for an operator to decide.


async def restore(
    registry: Registry,
    file: Sequence[tuple[str, bytes]],
    before: Subscriptions,
    *,
    now: datetime,
    announce: Callable[[OperationalEvent], Awaitable[None]],
    ends: Mapping[str, str] = NO_ENDS,
) -> Subscriptions:
    """Restore what can be restored, and announce the rest. Returns what there is then.

    Args:
        registry: of the store.
        file: the subscriptions of the configuration, as :meth:`~poller.store.registry.Registry.sync` takes them.
        before: what was there when it was looked at last.
        now: UTC.
        announce: publishes an operational event.
        ends: the last entries of the feeds, for those of the file that are new.

    Raises:
        StoreError: nothing was announced yet.
    """
    pauses = await registry.restore(before, health_resumed)
    paused, resumed = pauses.paused, pauses.resumed
    paused += await registry.sync(file, now, before, ends=ends)
    kept = await registry.all()
    filing = file_differences(kept, dict(file), before)
    for name, conflict in filing.conflicts.items():
        _log.error("subscription of the file not brought back", subscription=name, advice=f"{conflict}; {_THEN}")
    missing = before.registered.keys() - kept.registered.keys()
    lost = sorted(name for name in missing if before.registered[name].origin == "run")  # the others: by their file
    older = older_subscriptions(kept, before)
    log, event = (_log.error, "subscriptions lost") if lost else (_log.warning, "subscriptions brought back")
    log(
        event,
        lost=lost,
        paused=sorted(paused),
        resumed=sorted(resumed),
        changed=list(older.changed),
        returned=list(older.returned),
        left_out=list(filing.conflicts),
        differing=list(filing.differing),
        missing=list(filing.missing),
        version=kept.version,
        version_before=before.version,
        advice=_ADVICE
        + (f"add again what was added at run time: {', '.join(lost)}" if lost else "none of run time is missing")
        + _named("Paused again, as before", paused)
        + _named("Resumed again, as before", resumed)
        + _named("With older settings, to be changed again", older.changed)
        + _named("There again, to be removed again", older.returned)
        + _named("Of the file, left out because one of run time has the id", filing.conflicts)
        + _named("With other settings than in the file of this process, which a restart registers", filing.differing)
        + _named("Of other files, registered by the processes that list them, or not at all", filing.missing),
    )
    for name in lost:  # each process that delivers finds it missing
        was = f"version {before.version}, known since {rfc3339(before.registered[name].since)}"
        await announce(OperationalEvent(OperationType.SUBSCRIPTION_LOST, name, now, _LOST, occurrence=was))
    for name in resumed:
        await announce(OperationalEvent(OperationType.SUBSCRIPTION_RESUMED, name, now, _RESUMED_AGAIN))
    return kept


_ADVICE: Final = (
    "the store has lost its registry of subscriptions or a part of it, or holds an older one. Those of configuration "
    "files come back as they were; "
)
_LOST: Final = "the store has lost it, and it is in no configuration file; add it again"
_THEN: Final = "after the removal a running daemon registers that of the file, as it was"
_RESUMED_AGAIN: Final = "the store went back to when it was paused, and it had been resumed since"


def _named(text: str, names: Collection[str]) -> str:
    return f". {text}: {', '.join(sorted(names))}" if names else ""


ROLE: Final = "deliver"
_LOOK_AGAIN: Final = 1.0  # seconds until the store is asked again after an error
_UNLISTED_AGAIN: Final = 1.0  # seconds; deliveries of a feed that is listed no more end soon
_WAITS_AGAIN: Final = timedelta(minutes=1)  # what waits there goes after days
_PART_OF_GRACE: Final = 4  # between two looks at most: as much as a clock that is set forward can count
_HALF: Final = Fraction(1, 2)  # of the descriptors for connections
RELOAD_AGAIN: Final = 60.0  # seconds; a command that was killed did not say what it had scheduled
_BLOCK: Final = timedelta(seconds=2)
_REGISTRY: Final = "the subscriptions"
_ARRIVALS: Final = "new entries in the streams"


class DeliverRole:
    """Runs all subscriptions of one process."""

    def __init__(
        self,
        settings: Settings,
        environ: Mapping[str, str],
        store: OpenStore,
        membership: Membership,
        configurations: Configurations,
        *,
        shebang: str,
        watch: StoreObserver,
        clock: Clock,
        reload_seconds: float = RELOAD_AGAIN,
    ) -> None:
        """Take what they work with.

        Args:
            settings: the configuration.
            environ: may hold credentials.
            store: open and ready.
            membership: this process among the others.
            configurations: says which feeds other processes have, and which none has.
            shebang: the first line of scripts.
            watch: is informed when the store fails.
            clock: the store's.
            reload_seconds: between looks for what a command has scheduled without a word.
        """
        prefix = settings.redis.prefix
        self._membership = membership
        self._configurations = configurations
        self._sharing = LeaseBalancer(ROLE, membership, store.client, ttl=settings.lease.ttl, watch=watch, clock=clock)
        self._registry = Registry(store.client, SubscriptionKeys.of(prefix))
        self._filing = FileSubscriptions(settings, self._registry, store.client, membership, clock=clock)
        self._shared = RunnerContext(
            settings,
            environ,
            store,
            ConsumerScripts(store.client, shebang=shebang),
            self._registry,
            self._beside,
            self._sharing,
            ConnectionBudget(connections_for(_HALF), "subscriptions"),
            SharedTimer(GATHER, clock),
            membership.name,
            watch,
            clock,
        )
        self._streams: Mapping[str, str] = {}
        self._is_listening = asyncio.Event()  # there are subscriptions
        self._running: dict[str, SubscriptionRunner] = {}
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._ending: list[SubscriptionRunner] = []
        self._seen: RegistryVersions | None = None
        self._kept: Subscriptions | None = None
        self._feeds: dict[str, tuple[str, ...]] = {}
        self._compared = 0
        self._unlisted_at = math.inf
        self._unlisted_seen = math.inf
        self._unlisted_others: tuple[str, ...] = ()
        self._reload_seconds = reload_seconds
        self._reload_at = clock.monotonic() + reload_seconds
        self._failure = LogOnce(_log, "the subscriptions cannot be read")
        self._unseen = LogOnce(_log, "new entries cannot be seen")
        self._unreadable: dict[str, LogOnce] = {}
        self._is_read = False

    @property
    def subscriptions(self) -> int:
        """The number of subscriptions that are not paused."""
        return len(self._running)

    def failing(self) -> Mapping[str, str]:
        """The error of each subscription here whose deliveries fail, of the registry, and of each orphaned feed."""
        failing = {name: one.error for name, one in self._running.items() if one.error is not None}
        failures = {_REGISTRY: self._failure, **self._unreadable}
        return failing | {name: one.error for name, one in failures.items() if one.error is not None}

    @property
    def unread(self) -> str | None:
        """Why nothing is delivered here, because the subscriptions were not read since the start; None: they were."""
        return None if self._is_read else self._failure.error

    def _beside(self, sink: str, name: str, until: datetime) -> list[str]:
        """The subscriptions of this sink other than that of this name, which share its pause."""
        others = [one for one, running in self._running.items() if one != name and running.sink == sink]
        for one in others:
            self._running[one].pause_until(until)
        return others

    async def run(self, stop: asyncio.Event) -> None:
        """Deliver until ``stop`` is set, then let requests in flight end.

        Raises:
            ConfigurationError: two subscriptions have one id.
        """
        leases = keep_renewed(
            _ConsumerLeases(self._running, self._ending), ttl=self._shared.settings.lease.ttl, clock=self._shared.clock
        )
        tasks = [
            asyncio.create_task(leases, name="leases of deliveries"),
            asyncio.create_task(self._listen(), name="arrivals"),
            asyncio.create_task(self._sharing.run(), name="shares of deliveries"),
        ]
        self._membership.join(ROLE)
        try:
            await self._synced(stop)
            send: ScriptSender | None = None  # first now, then with the reading of the list of processes
            while not stop.is_set():
                for task in tasks:
                    if task.done():  # none should have ended before the stop; its error is raised
                        task.result()
                await unless_stopped(self._refresh(send), stop)
                send = self._membership.ask
        finally:
            self._membership.leave(ROLE)
            for name in list(self._running):
                self._leave(name)
            if self._leaving:
                await asyncio.wait(self._leaving.values())
            await ended(*tasks)

    async def _synced(self, stop: asyncio.Event) -> None:
        """Register the file's subscriptions, once the other processes can see this one."""
        joined = asyncio.create_task(self._membership.joined(ROLE))
        try:
            await first_of(stop, joined)
        finally:
            await ended(joined)
        while not stop.is_set():
            try:
                await self._filing.register()
                break
            except StoreError as error:
                self._away(error)
                await self._shared.clock.wait(stop, _LOOK_AGAIN)

    async def _refresh(self, send: ScriptSender | None) -> None:
        """Read whether the registry has changed, and apply the changes."""
        stale = any(running.is_stale for running in self._running.values())
        try:
            marks, pauses = await self._read(send)
            if isinstance(pauses, SinkPauses):  # first: what is started below has later ones
                for running in self._running.values():
                    running.follow_pauses(pauses)
            if isinstance(marks, BaseException):
                raise marks
            await self._apply(marks, stale=stale)
            if isinstance(pauses, BaseException):
                raise pauses
            self._failure.worked()
            self._shared.watch.worked(_REGISTRY)
        except StoreError as error:
            self._away(error)

    async def _read(
        self, send: ScriptSender | None
    ) -> tuple[RegistryVersions | BaseException, SinkPauses | BaseException]:
        return await asyncio.gather(self._registry.marks(send), self._registry.pauses(send), return_exceptions=True)

    async def _apply(self, marks: RegistryVersions, *, stale: bool) -> None:
        """Apply what has changed.

        Args:
            marks: what was read.
            stale: whether the registry had something else before that than what runs here. If it has the same version
                now, the store has lost its last writes, or all, and another process has written again.
        """
        if self._kept is not None and marks.is_loss(self._kept):
            self._kept = await self._restored(self._kept)
        registry_changed = self._seen is None or marks.version != self._seen.version or stale
        if self._kept is None or registry_changed:
            self._kept = await self._fresh()
        if await self._filing.reconcile(self._kept):  # before one is started that no file lists any more
            self._kept, registry_changed = await self._fresh(), True
        marks = marks._replace(version=self._kept.version)
        before = self._seen
        parked = before is None or marks.parked != before.parked  # without a reading before, some may be new
        if await self._feeds_changed(self._kept, anyway=registry_changed or parked) or registry_changed:
            self._carry_out(self._kept)
        if parked or self._shared.clock.monotonic() >= self._reload_at:
            self._reload_at = self._shared.clock.monotonic() + self._reload_seconds
            for running in self._running.values():
                running.reload()
        self._seen = marks
        others = self._configurations.orphans != self._unlisted_others
        if registry_changed or others or self._shared.clock.monotonic() >= self._unlisted_at:
            await self._end_unlisted(self._kept)

    async def _end_unlisted(self, kept: Subscriptions) -> None:
        """End the consumers at feeds that their subscriptions list no more; look again while some are left."""
        shared, seen = self._shared, self._shared.clock.monotonic()
        again = min(_WAITS_AGAIN, shared.settings.retention.age / _PART_OF_GRACE)
        others = self._configurations.orphans
        counts = min(timedelta(seconds=max(seen - self._unlisted_seen, 0.0)), again)
        self._unlisted_at, self._unlisted_seen = seen + _UNLISTED_AGAIN, seen  # also if this fails
        found = await end_unlisted_feeds(
            shared.store.client,
            shared.settings,
            kept,
            now=shared.clock.now(),
            counts=counts,
            others=others,
        )
        self._unlisted_others = others
        for one in found:
            if one.left == "ended":
                log = _log.warning if one.events else _log.info
                log("unlisted feed left", subscription=one.subscription, feed=one.feed, dropped=one.events)
        if not any(one.left == "busy" for one in found):
            waits = any(one.left == "waits" for one in found)
            self._unlisted_at = seen + again.total_seconds() if waits else math.inf

    async def _feeds_changed(self, kept: Subscriptions, *, anyway: bool) -> bool:
        """Update the feeds of each subscription. True: they have changed."""
        compared = await self._configurations.refresh()
        if compared == self._compared and not anyway:
            return False
        settings, now = self._shared.settings, self._shared.clock.now()
        waiting = {feed: await self._waiting_at(feed, kept, now) for feed in self._configurations.orphans}
        self._unreadable = {feed: one for feed, one in self._unreadable.items() if feed in waiting}
        feeds = {
            name: _feeds_of(name, one.outline.feeds, settings.feed_ids, self._configurations, waiting)
            for name, one in kept.registered.items()
        }
        wanted = (*settings.feed_ids, *sorted(set(chain.from_iterable(feeds.values())))) if feeds else ()
        self._streams = self._streams_of(wanted)
        (self._is_listening.set if feeds else self._is_listening.clear)()
        changed = feeds != self._feeds
        self._feeds, self._compared = feeds, compared
        return changed

    async def _waiting_at(self, feed: str, kept: Subscriptions, now: datetime) -> Collection[str]:
        """The subscriptions that have undelivered events at an orphaned feed; none where the feed cannot be read."""
        failure = self._unreadable.setdefault(feed, LogOnce(_log, "orphaned feed cannot be read", feed=feed))
        try:
            found = await waiting_at(self._shared.store.client, self._shared.settings.redis.prefix, feed, kept, now=now)
        except StoreUnavailable:
            raise
        except StoreError as error:  # of this feed alone
            failure.failed(str(error))
            return ()
        failure.worked()
        return found

    async def _fresh(self) -> Subscriptions:
        """The registry as it is now, restored if it has lost changes that were read, and counts others beyond them."""
        fresh, before = await self._registry.all(), self._kept
        return fresh if before is None or fresh.continues(before) else await self._restored(before)

    async def _restored(self, before: Subscriptions) -> Subscriptions:
        shared, self._seen = self._shared, None
        self._filing.lost(before)
        publish = partial(announce, shared.store.client, shared.settings.redis.prefix)
        ends, now = await self._filing.ends(), shared.clock.now()
        return await restore(self._registry, self._filing.file, before, now=now, announce=publish, ends=ends)

    def _away(self, error: StoreError, who: str = _REGISTRY) -> None:
        if isinstance(error, StoreUnavailable):
            self._shared.watch.failed(who, str(error))
        else:
            (self._unseen if who == _ARRIVALS else self._failure).failed(str(error))

    def _carry_out(self, kept: Subscriptions) -> None:
        """Stop removed and changed subscriptions, then start those that are not running."""
        self._is_read = True
        active = active_inputs(kept)
        for name, running in list(self._running.items()):
            # One that is paused here and not in the registry was paused and resumed between two reads, or its pause is
            # lost.
            if active.get(name) != running.inputs or self._feeds[name] != running.feeds or running.is_stale:
                self._leave(name)
        for name in active:
            if name not in self._running:
                after = self._leaving.get(name)
                self._running[name] = SubscriptionRunner(name, kept, self._shared, feeds=self._feeds[name], after=after)

    def _has_news(self, feed: str) -> None:
        for running in self._running.values():
            running.news(feed)

    def _leave(self, name: str) -> None:
        running, before = self._running.pop(name), self._leaving.get(name)
        leaving = asyncio.create_task(_stopped(running, before), name=f"end of subscription {name}")
        self._leaving[name] = leaving
        self._ending.append(running)
        leaving.add_done_callback(lambda _: self._left(name, leaving, running))

    def _left(self, name: str, leaving: asyncio.Task[None], running: SubscriptionRunner) -> None:
        self._ending.remove(running)
        if self._leaving.get(name) is leaving:
            del self._leaving[name]

    def _streams_of(self, feeds: Iterable[str]) -> Mapping[str, str]:
        """The feeds by the keys of their streams."""
        prefix = self._shared.settings.redis.prefix
        return {FeedKeys.of(prefix, feed).events: feed for feed in feeds}

    async def _listen(self) -> None:
        """Wake each feed consumer when its stream has new entries, also at a feed that only other processes have.

        Nothing is read while there is no subscription.
        """
        while True:
            if not self._is_listening.is_set():
                self._shared.watch.worked(_ARRIVALS)  # a failure before is no concern any more
                self._unseen.worked()
                await self._is_listening.wait()
            streams = self._streams
            client = blocking_client(self._shared.store.url, block=_BLOCK, clock=self._shared.clock)
            let_in(client)  # as the one beside it was, at the start
            try:
                async with aclosing(arrivals(client, streams, block=_BLOCK, clock=self._shared.clock)) as arriving:
                    async for fresh in arriving:
                        self._shared.watch.worked(_ARRIVALS)
                        self._unseen.worked()
                        for key in fresh:
                            self._has_news(streams[key])
                        if streams != self._streams:
                            break  # begun again, all of them have news once
            except StoreError as error:  # of one stream or server, maybe: the others have to be read meanwhile
                self._away(error, _ARRIVALS)
                for feed in streams.values():
                    self._has_news(feed)
                await self._shared.clock.sleep(_LOOK_AGAIN)
            finally:
                with suppress(Exception):  # the lease is lost anyway
                    await client.aclose()


def _feeds_of(
    name: str,
    named: tuple[str, ...] | None,
    configured: tuple[str, ...],
    configurations: Configurations,
    waiting: Mapping[str, Collection[str]],
) -> tuple[str, ...]:
    """The feeds that are delivered to a subscription here.

    Args:
        name: its id.
        named: the feeds that its settings name; None: all.
        configured: the feeds of this process.
        configurations: of all processes.
        waiting: the subscriptions that have undelivered events at each orphaned feed.
    """
    having = configurations.claimed
    feeds = (
        (*configured, *configurations.undelivered)
        if named is None
        else (feed for feed in named if having is None or feed in having)
    )
    left = (feed for feed, names in waiting.items() if name in names)
    return tuple(dict.fromkeys((*feeds, *left)))


async def _stopped(running: SubscriptionRunner, before: asyncio.Task[None] | None) -> None:
    """Stop a subscription and wait for its end."""
    if before is not None:
        running.do_not_start()  # after that one, which may take its whole time to end
        await asyncio.wait([before])
    await running.stop()


class _ConsumerLeases:
    """The leases of all feed consumers at the time of iteration, also of those whose last requests are in flight."""

    def __init__(self, running: Mapping[str, SubscriptionRunner], ending: Collection[SubscriptionRunner]) -> None:
        self._running = running
        self._ending = ending

    def __iter__(self) -> Iterator[Lease]:
        return iter([store.lease for one in (*self._running.values(), *self._ending) for store in one.stores])
