"""One subscription being delivered: its sink, limits, and a consumer for each leased feed.

**Invariants**

- A restarted subscription starts after its predecessor has ended, with the state that it has stored.
- A subscription that was removed, or replaced by another one of its id, is not delivered with a lease acquired since.
- A store failure ends nothing permanently. Unusable settings are logged once and tried again every few seconds, because
  a missing file may appear.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from fractions import Fraction
from functools import partial
from typing import Final, Literal, NamedTuple

import msgspec
import structlog

from poller.clock import Clock
from poller.config.settings import Settings
from poller.config.subscriptions import SubscriptionSettings
from poller.config.validation import decode_subscription
from poller.control.diagnostics import check_choices
from poller.control.factories import configured_feed, keys_of, sink_of, subscription_of
from poller.daemon.cluster.leases import LeaseBalancer, LeaseKeeper
from poller.daemon.cluster.membership import StoreObserver
from poller.delivery.backfill import BackfillSource
from poller.delivery.endpoint import EndpointState
from poller.delivery.endpoint_health import Health, after_no_start, after_start, health_of
from poller.delivery.feed_consumer import LAST_WAIT, FeedConsumer, SharedTimer
from poller.delivery.handshake import Granted, permitted
from poller.delivery.operational_events import OperationalEvent, OperationType, announce
from poller.delivery.sinks.base import Sink
from poller.errors import ConfigurationError, StoreError, StoreUnavailable, fault_text
from poller.lifecycle import ended
from poller.limits import ConnectionBudget
from poller.store.consumer_state import ConsumerScripts, ConsumerStore
from poller.store.keys import ConsumerKeys, FeedKeys
from poller.store.lease import RELEASE_SECONDS, nonce_of
from poller.store.records import RecordReader
from poller.store.registry import Registry
from poller.store.session import OpenStore
from poller.store.subscriptions import WHOLE, Paused, Registered, SinkPauses, Subscriptions
from poller.telemetry.metrics import no_attempts_of
from poller.text import one_line

END_WITHIN: Final = LAST_WAIT + 2 * RELEASE_SECONDS
"""Seconds that a subscription may take to end: the last requests, one write, releasing the leases."""

_AGAIN: Final = 1.0  # seconds between attempts while the store is unavailable
_LOOK_AGAIN: Final = 0.2  # seconds until the registry is looked at again, if it holds another subscription
_AFTER_FAULT: Final = 5.0
_FILES_AGAIN: Final = 2.0  # seconds between attempts with settings whose files cannot be used

_log = structlog.get_logger("poller.delivery")


class RunnerInputs(NamedTuple):
    """The inputs of a subscription's delivery; if they change, it is restarted.

    Attributes:
        settings: in their stored form, JSON.
        secrets: the signing secrets that no file holds.
        credential: the stored credential of a request; None: none.
        since: when it was added; another one of this id begins where it was asked to.
        unusable: why it cannot be delivered, in words; empty: it can.
    """

    settings: bytes
    secrets: tuple[str, ...]
    credential: bytes | None
    since: datetime
    unusable: str

    def __repr__(self) -> str:
        """The inputs without possible secrets."""
        return "RunnerInputs(…)"


class RunnerContext(msgspec.Struct, frozen=True):
    """What the subscriptions of a process have in common.

    Attributes:
        settings: the configuration.
        environ: where credentials may be.
        store: open and ready.
        scripts: of its client.
        registry: where the subscriptions are kept.
        beside: takes a sink's URL, the subscription whose delivery learnt that the sink wants nothing until a moment,
            and that moment; informs the others of that sink and names them.
        sharing: the leases of the feed consumers.
        connections: to all sinks.
        gathering: when results that were gathered are written.
        member: this process's name.
        watch: is informed when the store is away.
        clock: the store's.
    """

    settings: Settings
    environ: Mapping[str, str]
    store: OpenStore
    scripts: ConsumerScripts
    registry: Registry
    beside: Callable[[str, str, datetime], Iterable[str]]
    sharing: LeaseBalancer
    connections: ConnectionBudget
    gathering: SharedTimer
    member: str
    watch: StoreObserver
    clock: Clock


def active_inputs(kept: Subscriptions) -> dict[str, RunnerInputs]:
    """The inputs of all subscriptions that are not paused."""
    return {name: _inputs_of(name, kept) for name in kept.registered if _is_active(name, kept)}


def _is_active(name: str, kept: Subscriptions) -> bool:
    return name in kept.registered and name not in kept.paused


def _inputs_of(name: str, kept: Subscriptions) -> RunnerInputs:
    registered = kept.registered[name]
    return RunnerInputs(
        bytes(registered.settings),
        kept.secrets.get(name, ()),
        kept.credentials.get(name),
        registered.since,
        kept.unusable.get(name, ""),
    )


class SubscriptionRunner:
    """Delivers one subscription, from its creation until :meth:`stop`."""

    def __init__(
        self,
        name: str,
        kept: Subscriptions,
        shared: RunnerContext,
        *,
        feeds: tuple[str, ...],
        after: asyncio.Task[None] | None = None,
    ) -> None:
        """Start the delivery.

        Args:
            name: the subscription's id.
            kept: the registry, with this subscription in it.
            shared: the shared parts.
            feeds: of the subscription.
            after: the task that must end before.
        """
        self.inputs = _inputs_of(name, kept)
        self.feeds = feeds
        self.sink = kept.registered[name].outline.sink
        self.stores: list[ConsumerStore] = []
        self.paused_until = kept.pauses.until.get(name)
        self._resumed = kept.pauses.resumed.get(name, 0)
        self._name = name
        self._shared = shared
        self._notes = RegistryWriter(shared, self.sink)
        self._consumers: dict[str, FeedConsumer] = {}
        self._owned: list[LeaseKeeper] = []
        self._subscriber: EndpointState | None = None
        self._idle_because: str | None = None
        self._stop = asyncio.Event()
        self._is_outdated = False
        self._task = asyncio.create_task(self._run(kept, after), name=f"subscription {name}")

    def news(self, feed: str) -> None:
        """The stream of this feed has new entries."""
        if consumer := self._consumers.get(feed):
            consumer.news()

    def reload(self) -> None:
        """A command has scheduled deliveries or a replay."""
        for consumer in self._consumers.values():
            consumer.reload()

    def follow_pauses(self, pauses: SinkPauses) -> None:
        """Pause or resume the sink by the registry, which any process may have changed."""
        if pauses.is_resumed_since(self._name, self._resumed):
            self._resumed, self.paused_until = pauses.resumed[self._name], None
            if self._subscriber:
                self._subscriber.resume()
        until = pauses.until.get(self._name)
        self.pause_until(until, pauses.since.get(self._name))
        if self._subscriber and (until is None or until <= self._shared.clock.now()):
            self._subscriber.pause_is_lost()

    def pause_until(self, until: datetime | None, since: datetime | None = None) -> None:
        """Pause the sink until this moment of the store's clock; None: no pause.

        No longer than from ``since``, where that is known: the store's clock may have been set a moment ago.
        """
        if until is not None and until != self.paused_until and self._subscriber:
            self._subscriber.paused_elsewhere(until, since)
        self.paused_until = until

    @property
    def is_stale(self) -> bool:
        """Whether it was paused by its sink or by failures, or was not in the registry as it is delivered here."""
        return self._is_outdated or (self._subscriber is not None and self._subscriber.is_pause_stored)

    @property
    def error(self) -> str | None:
        """The error here, in words; None: no failure."""
        found = self._subscriber.error if self._subscriber else self._idle_because
        return found or next((one.error for one in self._owned if one.error is not None), None)

    async def wait_until_current(self) -> bool:
        """Whether the registry still holds the subscription as it is delivered here; if not, False after a moment.

        To be asked when a lease was acquired: it may be free because the subscription was removed, and this process has
        not noticed. A command that removes one waits until no lease is held.

        Raises:
            StoreError: see :meth:`poller.store.registry.Registry.is_current`.
        """
        if await self._shared.registry.is_current(self._name, self.inputs.settings, self.inputs.since):
            return True
        self._is_outdated = True
        await self._shared.clock.wait(self._stop, _LOOK_AGAIN)
        return False

    async def recall(self, feed: str, subscriber: EndpointState) -> None:
        """Read pauses from the registry, and the health at a feed that another process had before.

        Raises:
            StoreError: see :meth:`poller.store.registry.Registry.pauses`.
        """
        registry = self._shared.registry
        self.follow_pauses(await registry.pauses())
        subscriber.took(feed, health_of(await registry.health(self._name, feed)))

    def do_not_start(self) -> None:
        """Deliver nothing if the predecessor has not ended yet; :meth:`stop` follows."""
        self._stop.set()

    async def stop(self) -> None:
        """End in order: start no attempts, let those in flight end, release the leases."""
        self._stop.set()
        for owned in self._owned:
            self._shared.sharing.drop(owned)
            owned.stop()
        await asyncio.wait([self._task], timeout=END_WITHIN)
        await ended(self._task)
        no_attempts_of(self._name)
        self._shared.watch.worked(self._name)

    async def _run(self, kept: Subscriptions, after: asyncio.Task[None] | None) -> None:
        fresh: Subscriptions | None = kept
        if after is not None:
            await asyncio.wait([after])
            fresh = None  # the predecessor may have stored something at its end
        while not self._stop.is_set():
            try:
                fresh = fresh or await self._shared.registry.all()
                self._shared.watch.worked(self._name)
                if _is_active(self._name, fresh):
                    await self._deliver(fresh)
                else:  # paused or removed meanwhile; the reader of the registry ends this, unless the store forgets it
                    fresh = None
                    await self._shared.clock.wait(self._stop, _AGAIN)
            except StoreError as error:
                if isinstance(error, StoreUnavailable):
                    self._shared.watch.failed(self._name, str(error))
                else:
                    _log.warning("not delivering", subscription=self._name, error=str(error))
                fresh = None
                await self._shared.clock.wait(self._stop, _AGAIN)
            except (ConfigurationError, ValueError) as error:
                why = one_line(str(error))
                if why != self._idle_because:
                    self._idle_because = why
                    _log.error("subscription cannot be delivered", subscription=self._name, error=str(error))
                    await self._note_start(partial(after_no_start, at=self._shared.clock.now(), error=why))
                fresh = None
                await self._shared.clock.wait(self._stop, _FILES_AGAIN)
            except Exception as error:  # noqa: BLE001 -- without this task the subscription would do nothing, silently
                self._subscriber, self._idle_because = None, fault_text(error)
                _log.exception("subscription cannot be delivered", subscription=self._name)
                fresh = None
                await self._shared.clock.wait(self._stop, _AFTER_FAULT)

    async def _deliver(self, kept: Subscriptions) -> None:
        if self.inputs.unusable:
            raise ConfigurationError(self.inputs.unusable)
        settings = decode_subscription(self.inputs.settings)
        for found in check_choices(self._shared.settings, settings):
            _log.warning("subscription matches nothing", subscription=self._name, reason=found.text)
        self.follow_pauses(kept.pauses)
        environ, clock = self._shared.environ, self._shared.clock
        secrets, brought = self.inputs.secrets, self.inputs.credential
        make = partial(sink_of, settings, environ, brought=brought, secrets=secrets, clock=clock)
        sink, granted = make(), None
        if health_of(kept.health.get(self._name, {}).get(WHOLE)).unsent:
            await self._note_start(after_start)
        if settings.handshake:
            async with sink:
                granted = await self._permitted(settings, sink, kept.handshakes.get(self._name))
            if granted is None:
                return
            sink = make(granted=granted)
        async with sink:
            self._subscriber = EndpointState(
                subscription_of(settings, granted, self._shared.settings.id_fields),
                sink,
                self._notes,
                unwell=health_of(kept.health.get(self._name, {}).get(WHOLE)).unwell,
                paused_until=self.paused_until,
                clock=clock,
            )
            with self._shared.connections.shared_by(self._subscriber):
                await self._own_all(self._subscriber, kept.registered[self._name])

    async def _permitted(self, settings: SubscriptionSettings, sink: Sink, kept: bytes | None) -> Granted | None:
        public_url = self._shared.settings.http.public_url
        registry, clock = self._shared.registry, self._shared.clock
        return await permitted(
            settings, sink, registry, kept, self._stop, public_url=public_url, clock=clock, report=self._held_up
        )

    def _held_up(self, reason: str | None) -> None:
        self._idle_because = reason

    async def _note_start(self, change: Callable[[Health], Health]) -> None:
        """Store whether the subscription could start here, if that has changed."""

        def changed(kept: bytes | None) -> bytes | None:
            before = health_of(kept)
            after = change(before)
            return None if after == before else msgspec.json.encode(after)

        with suppress(StoreError):  # the log reports it anyway
            await self._shared.registry.change_health(self._name, WHOLE, changed)

    async def _own_all(self, subscriber: EndpointState, known: Registered) -> None:
        sharing, self.stores = self._shared.sharing, []
        self._owned = [self._owned_of(feed, subscriber, known) for feed in self.feeds]
        running = [asyncio.create_task(owned.run(), name=owned.name) for owned in self._owned]
        for owned in self._owned:
            if self._stop.is_set():  # stopped before the start
                owned.stop()
            else:
                sharing.add(owned)
        try:
            await asyncio.gather(*running)
            if not running:  # none of its feeds exists now
                await self._stop.wait()
        finally:
            for owned in self._owned:
                sharing.drop(owned)
            await ended(*running)

    def _owned_of(self, feed: str, subscriber: EndpointState, known: Registered) -> LeaseKeeper:
        store = self._store_of(feed, known)
        backfills = partial(self._records_of, feed)
        shared = self._shared
        consumer = FeedConsumer(
            feed, subscriber, store, backfills=backfills, gathering=shared.gathering, clock=shared.clock
        )
        self._consumers[feed] = consumer
        self.stores.append(store)
        return LeaseKeeper(
            _InformedConsumer(consumer, self, subscriber),
            store.lease,
            subscription=self._name,
            watch=self._shared.watch,
            changed=lambda: self._shares(subscriber),
            let_go=self._shared.sharing.announce_release,
            clock=self._shared.clock,
        )

    def _shares(self, subscriber: EndpointState) -> None:
        """Use the part of the sink's limits that corresponds to the consumers here."""
        here = sum(owned.is_active for owned in self._owned)
        if here:
            subscriber.share(Fraction(here, len(self._owned)))
        else:
            no_attempts_of(self._name)
        self._shared.sharing.wake()

    def _records_of(self, feed: str) -> BackfillSource | None:
        settings, client = self._shared.settings, self._shared.store.client
        configured = configured_feed(settings, feed)
        if configured is None:
            return None
        keys = keys_of(settings, feed)
        return BackfillSource(configured, RecordReader(client, keys, id_field=configured.id_field))

    def _store_of(self, feed: str, known: Registered) -> ConsumerStore:
        shared, prefix = self._shared, self._shared.settings.redis.prefix
        keys = FeedKeys.of(prefix, feed)
        return ConsumerStore(
            shared.store.client,
            shared.scripts,
            ConsumerKeys.of(prefix, feed, self._name),
            events=keys.events,
            feed_state=keys.state,
            snapshots=keys.snapshots,
            since=known.since,
            asked=known.asked_for(feed),
            new_after=known.new_after(feed),
            subscription=self._name,
            nonce=nonce_of(shared.member, shared.clock),
            lease=shared.settings.lease.ttl,
            clock=shared.clock,
        )


class _InformedConsumer:
    """A feed consumer that starts with its stored health, and stores it at its end."""

    def __init__(self, consumer: FeedConsumer, running: SubscriptionRunner, subscriber: EndpointState) -> None:
        self.feed = consumer.feed
        self.ready = consumer.ready
        self.stop = consumer.stop
        self._consumer = consumer
        self._running = running
        self._subscriber = subscriber

    async def run(self) -> None:
        if not await self._running.wait_until_current():
            return
        await self._running.recall(self.feed, self._subscriber)
        try:
            await self._consumer.run()
            with suppress(StoreError):  # some attempts are missing in the stored counts then
                await self._subscriber.store_health(self.feed)
        finally:
            self._subscriber.left(self.feed)


# The stored state of endpoints, and its announcements.


class RegistryWriter:
    """Writes the state of endpoints into the registry, and announces it.

    What a sink says late, when its subscription has another one already, is not written. See
    :class:`poller.delivery.endpoint.EndpointNotes`.
    """

    def __init__(self, shared: RunnerContext, sink: str) -> None:
        """Take where to write, and the URL of the sink that the notes are about."""
        self._registry = shared.registry
        self._beside = shared.beside
        self._client = shared.store.client
        self._clock = shared.clock
        self._prefix = shared.settings.redis.prefix
        self._sink = sink

    async def until(self, subscription: str, moment: datetime) -> None:
        """Store a pause requested by the sink, for all its subscriptions."""
        span = moment - self._clock.now()  # before it is asked, for then its clock may turn out to have been set
        for name in (*self._beside(self._sink, subscription, moment), subscription):
            await self._registry.note_pause(name, span, sink=self._sink)

    async def health(self, subscription: str, feed: str, health: Health) -> None:
        """Store the health at a feed."""
        await self._registry.note_health(subscription, feed, msgspec.json.encode(health))

    async def healths(self, subscription: str) -> Mapping[str, Health]:
        """The stored health of all feeds, from all processes."""
        kept = await self._registry.healths(subscription)
        return {feed: health_of(health) for feed, health in kept.items()}

    async def rest(self, subscription: str, *, by: Literal["sink", "failures"], reason: str, at: datetime) -> None:
        """Pause the subscription until an operator resumes it, and announce it."""
        renewed = _unwell if by == "failures" else bytes
        if await self._registry.rest(subscription, Paused(by, reason, at), sink=self._sink, renewed=renewed):
            kind = OperationType.SUBSCRIPTION_PAUSED if by == "sink" else OperationType.SUBSCRIPTION_DISABLED
            _log.error("subscription paused", subscription=subscription, by=by, reason=reason)
            await self._announce(OperationalEvent(kind, subscription, at, reason))

    async def recovered(self, subscription: str, at: datetime) -> None:
        """Store that the sink accepts events again; the first process announces it."""
        if not await self._registry.renew_health(subscription, _well):
            return
        _log.info("subscription recovered", subscription=subscription)
        await self._announce(
            OperationalEvent(OperationType.SUBSCRIPTION_RECOVERED, subscription, at, "it took an event again")
        )

    async def _announce(self, announcement: OperationalEvent) -> None:
        await announce(self._client, self._prefix, announcement)


def _unwell(kept: bytes) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(health_of(kept), unwell=True))


def _well(kept: bytes) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(health_of(kept), unwell=False))
