"""The daemon: polls its share of feeds and delivers its share of subscriptions.

**Invariants**

- The daemon starts even if the store or a source is unavailable: it waits for the store, and an unavailable source
  fails only its own rounds. The HTTP service answers from the start to the end.
- Once stopped, the daemon starts no round, lets running commits finish, and releases its leases, so that another
  process can continue immediately.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar

import structlog

from poller import __version__
from poller.clock import Clock
from poller.config.settings import Settings
from poller.config.sources import SourceSettings
from poller.control.factories import credential_of
from poller.control.orphans import report_empty_store, stated, store_orphans
from poller.daemon.cluster.membership import Configurations, Membership
from poller.daemon.deliver_role import DeliverRole
from poller.daemon.health import START, Readiness, StoreMonitor, SupervisorNotifier, counted, measured, supervised
from poller.daemon.poll_role import poll_until
from poller.daemon.retention_role import RetentionRole
from poller.daemon.round_runner import PolledFeed, RoundObserver, polled_feeds
from poller.daemon.stored_metrics import StoredReadings
from poller.errors import ConfigurationError, CredentialUnusable, StoreError, StoreRefused, StoreUnavailable
from poller.http.transport import Transport
from poller.lifecycle import ended, first_of, unless_stopped
from poller.source.feed import RoundMode, RoundResult
from poller.store.keys import MemberKeys, SubscriptionKeys, remembered_key
from poller.store.lease import keep_renewed, member_name, release_all
from poller.store.members import Members
from poller.store.recovery import overhear
from poller.store.registry import Registry
from poller.store.session import STORE_PATIENCE, OpenStore, clock_of, examined, opened_store, until_ready
from poller.telemetry.metrics import ProcessMetrics, counting_in, process_metrics
from poller.web.app import serve, site
from poller.web.context import AppContext
from poller.web.health import Exposition, metrics_routes

_log = structlog.get_logger("poller.daemon")
_ASKED_AGAIN: Final = 0.25  # seconds
_NO_VARIABLE: Final = "set it and start poller again; until then the source's rounds fail"
_NO_FILE: Final = "correct the file; until then the source's rounds fail; they continue without a restart"
ROLES: Final = frozenset({"poll", "deliver", "serve"})
T = TypeVar("T")


async def run(
    settings: Settings,
    environ: Mapping[str, str],
    *,
    stop: asyncio.Event,
    clock: Clock,
    roles: frozenset[str] = ROLES,
    metrics: ProcessMetrics | None = None,
) -> None:
    """Poll and deliver until ``stop`` is set.

    Args:
        settings: the configuration.
        environ: may hold tokens.
        stop: ends the daemon in order.
        clock: of this process.
        roles: of this process.
        metrics: of this daemon; None: those of this process.

    Raises:
            ConfigurationError: the configuration cannot be used, or the store is less durable than required.
            StoreError: the store refuses the connection, or the embedded server does not start.
    """
    with counting_in(metrics or process_metrics()):
        daemon = _Daemon(settings, environ, clock)
        serving = settings.http.bind if "serve" in roles else None
        if serving is None and roles == {"serve"}:
            raise ConfigurationError('nothing to do: the role is serve alone, and http.bind is "off"')
        over = asyncio.Event()
        working = [daemon.work(roles, stop, over), daemon.supervise(stop, over)]
        if serving is not None:
            working.append(serve(daemon.site(), serving, until=over, clock=clock))
        with measured(process_metrics().loop_lag.observe, clock, overslept=daemon.overslept):
            await _all_of(working)
    _log.info("stopped")


class _Daemon:
    """The parts of the daemon that live from before the store answers until everything else has ended."""

    def __init__(self, settings: Settings, environ: Mapping[str, str], clock: Clock) -> None:
        self._settings = settings
        self._environ = environ
        self._clock = clock_of(settings, clock)
        process_metrics().retention_max_bytes.set(settings.retention.max_bytes)
        self._watch = StoreMonitor(settings.redis.durability, clock=clock)
        self._readings = StoredReadings(settings, self._watch, clock=self._clock)
        self.overslept = self._watch.overslept
        self._readiness = Readiness(self._watch)
        self._registry: Registry | None = None
        self._backing = AppContext(settings, environ, clock=self._clock)
        self._deliverer: DeliverRole | None = None

    def site(self) -> Any:
        """The HTTP application; roles add their routes."""
        exposition = Exposition(self._readiness, self._watch, self._readings)
        return site(self._backing, self._readiness, lambda: self._registry, *metrics_routes(exposition))

    def supervise(self, stop: asyncio.Event, over: asyncio.Event) -> Coroutine[None, None, None]:
        """Keep the supervisor of this process informed."""
        return supervised(
            SupervisorNotifier(self._environ), self._readiness, self._doing, stop=stop, over=over, clock=self._clock
        )

    def _doing(self) -> str:
        feeds = counted(len(self._settings.feed_ids), "feed")
        return f"{feeds}, {counted(self._deliverer.subscriptions, 'subscription')}" if self._deliverer else feeds

    async def work(self, roles: frozenset[str], stop: asyncio.Event, over: asyncio.Event) -> None:
        """Run all roles but HTTP; sets ``over`` at the end."""
        settings, environ, clock, watch = self._settings, self._environ, self._clock, self._watch
        try:
            if "poll" in roles:
                await report_missing_credentials(settings.sources, environ, clock)
            async with AsyncExitStack() as stack:
                # Slow steps of the start end when the daemon is stopped.
                opening = opened_store(settings, clock=self._clock, waits_for_disk=True)
                store = await unless_stopped(stack.enter_async_context(opening), stop)
                shebang = await unless_stopped(self._looked_at(store, roles), stop) if store else None
                if store is None or shebang is None:
                    return
                self._registry = Registry(store.client, SubscriptionKeys.of(settings.redis.prefix))
                await stack.enter_async_context(self._backing.standing(store))
                only = None if "poll" in roles else frozenset[str]()
                membership = _membership(settings, store, watch, shebang)
                self._readiness.sharing(lambda: membership.error)
                name = membership.name
                feeds = await stack.enter_async_context(
                    polled_feeds(settings, environ, store.client, shebang=shebang, clock=clock, only=only, member=name)
                )
                ids = [polled.feed.id for polled in feeds]
                _log.info("started", version=__version__, store=store.shown, feeds=ids, member=name)
                self._readiness.started()
                self._readings.attach(store.client)
                stack.push_async_callback(self._readings.detach)
                await stack.enter_async_context(membership.running())
                configurations = Configurations(settings, store.client, membership, clock=clock)
                working = [_watched(stop, watch), self._noted_stop(stop)]
                if "poll" in roles:
                    after = RoundObserver(watch, self._readiness)
                    ttl = settings.lease.ttl
                    prefix = settings.redis.prefix
                    working.append(
                        poll_until(stop, feeds, membership, store.client, after, prefix=prefix, ttl=ttl, clock=clock)
                    )
                    stores = {polled.feed.id: polled.store for polled in feeds}
                    retaining = RetentionRole(
                        settings,
                        store.client,
                        stores,
                        configurations,
                        shebang=shebang,
                        clock=clock,
                        member=name,
                        let_go=membership.announce_release,
                    )
                    working.append(retaining.run(stop))
                    noted = remembered_key(prefix)
                    working.append(overhear(stop, store.client, noted, stores.items(), clock=clock))
                if "deliver" in roles:
                    deliverer = DeliverRole(
                        settings, environ, store, membership, configurations, shebang=shebang, watch=watch, clock=clock
                    )
                    self._deliverer = deliverer
                    self._readiness.delivering(deliverer.failing, lambda: deliverer.unread)
                    working.append(deliverer.run(stop))
                await _all_of(working)
        finally:
            over.set()

    async def _looked_at(self, store: OpenStore, roles: frozenset[str]) -> str:
        """Check the store at the start. Returns the first line of scripts that the store knows."""
        watch = self._watch
        while True:
            shebang = await until_ready(store, patience=None, away=partial(watch.failed, START))
            try:
                findings = await examined(self._settings, store)
                if "poll" in roles:
                    await report_empty_store(store.client, self._settings)
                with suppress(StoreRefused):  # the rounds and deliveries name the key that cannot be used
                    await store_orphans(store.client, self._settings)
            except StoreUnavailable as error:  # the store became unavailable between two commands
                watch.failed(START, str(error))
                await self._clock.sleep(_ASKED_AGAIN)
                continue
            watch.attach(store.client, findings)
            return shebang

    async def _noted_stop(self, stop: asyncio.Event) -> None:
        await stop.wait()
        _log.info("stopping")
        self._readiness.stopping()


def _membership(settings: Settings, store: OpenStore, watch: StoreMonitor, shebang: str) -> Membership:
    ttl, keys = settings.lease.ttl, MemberKeys.of(settings.redis.prefix)
    members = Members(
        store.client,
        keys,
        name=member_name(store.clock),
        ttl=ttl,
        shebang=shebang,
        clock=store.clock,
        configuration=stated(settings),
    )
    return Membership(members, ttl=ttl, watch=watch, clock=store.clock)


async def _all_of(working: Iterable[Coroutine[None, None, None]]) -> None:
    """Run these concurrently until all have ended. The first failure cancels the others and is raised."""
    tasks = [asyncio.create_task(one) for one in working]
    try:
        await asyncio.gather(*tasks)
    finally:
        await ended(*tasks)


async def _watched(stop: asyncio.Event, watch: StoreMonitor) -> None:
    watching = asyncio.create_task(watch.run(), name="store watch")
    try:
        await first_of(stop, watching)
    finally:
        await ended(watching)


# One round for every feed, then the end: for cron, tests and first trials.

_LOOK_AGAIN: Final = timedelta(milliseconds=250)
_SOONEST: Final = timedelta(milliseconds=100)


async def once(
    settings: Settings,
    environ: Mapping[str, str],
    feed_ids: tuple[str, ...],
    *,
    clock: Clock,
    report: Callable[[RoundResult], None],
) -> bool:
    """Run one round for each of these feeds. True: all succeeded.

    Feeds run concurrently. Those with a substream per qualification come last, because the others name the
    qualifications.

    Args:
        settings: the configuration.
        environ: may hold tokens.
        feed_ids: of the feeds, ``SOURCE/NAME``.
        clock: of this process.
        report: is called with each result as it comes.

    Raises:
        ConfigurationError: the configuration cannot be used, or the store is less durable than required.
        Exception: what ``report`` raised, after the other rounds were stopped.
    """
    try:
        async with opened_store(settings, clock=clock_of(settings, clock)) as store:
            shebang = await until_ready(store, patience=STORE_PATIENCE)
            await examined(settings, store)
            await report_empty_store(store.client, settings)
            async with polled_feeds(
                settings, environ, store.client, shebang=shebang, clock=store.clock, only=frozenset(feed_ids)
            ) as feeds:
                return await _rounds(feeds, settings.lease.ttl, report, clock)
    except StoreError as error:
        for feed_id in feed_ids:
            report(RoundResult(feed=feed_id, mode=RoundMode.SKIPPED, ok=False, error=str(error)))
        return False


async def _rounds(
    feeds: tuple[PolledFeed, ...], ttl: timedelta, report: Callable[[RoundResult], None], clock: Clock
) -> bool:
    async def run(polled: PolledFeed) -> bool:
        result = await _when_free(polled, clock)
        report(result)
        return result.ok

    stores = [polled.store for polled in feeds]
    renewing = asyncio.create_task(keep_renewed([store.lease for store in stores], ttl=ttl, clock=clock), name="leases")
    good: list[bool] = []
    try:
        for last in (False, True):
            turn = (polled for polled in feeds if polled.feed.resource.per_qualification is last)
            good += await _together(map(run, turn))
    finally:
        await ended(renewing)
        await release_all(stores)
    return all(good)


async def _together(rounds: Iterable[Coroutine[None, None, bool]]) -> list[bool]:
    """The results of all. The first failure cancels the others and is raised when they have ended."""
    tasks = [asyncio.create_task(one) for one in rounds]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await ended(*tasks)


async def _when_free(polled: PolledFeed, clock: Clock) -> RoundResult:
    """Run a round; if another process has the lease, wait until it expires. A renewed lease has a live owner."""
    result = await polled.round(whole=True)
    while result.wait is not None:
        pause = max(_SOONEST, min(result.wait, _LOOK_AGAIN))
        await clock.sleep(pause.total_seconds())
        again = await polled.round(whole=True)
        if again.wait is not None and again.wait > result.wait:
            return again
        result = again
    return result


async def report_missing_credentials(
    sources: Iterable[SourceSettings], environ: Mapping[str, str], clock: Clock
) -> None:
    """Log the sources whose credential is missing or unusable. Token programs and token servers are not called here."""
    for source in sources:
        credential = credential_of(source.auth, environ, Transport(), source.timeout, clock)
        try:
            await credential.check()
        except CredentialUnusable as error:
            advice = _NO_VARIABLE if credential.needs_restart else _NO_FILE
            _log.error("source without a credential", source=source.name, error=str(error), advice=advice)
