"""One subscription while it is delivered: its sink, its limits, and a pair for each of its feeds that is had here.

The law: a subscription that is begun again begins when the one before it has ended, and with what that one has noted.
A store that fails ends nothing for good; settings that cannot be used are told once and wait to be changed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from fractions import Fraction
from functools import partial
from typing import Final

import msgspec
import structlog

from poller.config.settings import Settings
from poller.config.subscribing import kept_subscription
from poller.config.subscriptions import SubscriptionSettings
from poller.delivery.handshake import Granted
from poller.delivery.health import Health, after_no_start, after_start, health_of
from poller.delivery.owning import Owned
from poller.delivery.pair import LAST_WAIT, Pair
from poller.delivery.sink import Sink
from poller.delivery.subscriber import Subscriber
from poller.delivery.subscription import Notes
from poller.errors import ConfigurationError, StoreError, StoreUnavailable
from poller.hiding import one_line
from poller.service.checking_choices import check_choices
from poller.service.handshaking import permitted
from poller.service.membership import Watch
from poller.service.opening import OpenStore
from poller.service.sending import Form, sink_of, subscription_of
from poller.service.sharing import Sharing
from poller.stopping import ended, unless
from poller.store.deliveries import PairStore
from poller.store.delivery_scripts import DeliveryScripts
from poller.store.keys import FeedKeys, PairKeys
from poller.store.lease import RELEASE_SECONDS
from poller.store.owners import nonce_of
from poller.store.registrations import WHOLE, Registered, Subscriptions
from poller.store.subscriptions import Registry
from poller.telemetry.attempts import no_attempts_of

END_WITHIN: Final = LAST_WAIT + 2 * RELEASE_SECONDS
"""Seconds that a subscription may take to end: the last requests, one write, and giving the leases back."""

_AGAIN: Final = 1.0  # seconds before a store that failed is asked again

_log = structlog.get_logger("poller.delivery")

MadeOf = tuple[bytes, tuple[str, ...], bytes | None]
"""A subscription's settings in JSON, the signing secrets that no file holds, and what a request has brought for its
sink."""


class Shared(msgspec.Struct, frozen=True):
    """What the subscriptions of a process have in common.

    Attributes:
        settings: the configuration.
        environ: where credentials may be.
        store: open and ready.
        scripts: of its client.
        registry: where the subscriptions are kept.
        notes: what outlives this process.
        sharing: the leases of the pairs.
        member: this process's name.
        watch: told when the store is away.
        now: the store's clock, UTC.
    """

    settings: Settings
    environ: Mapping[str, str]
    store: OpenStore
    scripts: DeliveryScripts
    registry: Registry
    notes: Notes
    sharing: Sharing
    member: str
    watch: Watch
    now: Callable[[], datetime]


def wanted(kept: Subscriptions) -> dict[str, MadeOf]:
    """The subscriptions that are to be delivered: all that do not rest."""
    return {
        name: (bytes(registered.settings), tuple(kept.secrets.get(name, ())), kept.credentials.get(name))
        for name, registered in kept.registered.items()
        if name not in kept.paused
    }


class Running:
    """A subscription that is being delivered, from when this is made until :meth:`stop`."""

    def __init__(
        self,
        name: str,
        kept: Subscriptions,
        shared: Shared,
        *,
        feeds: tuple[str, ...],
        after: asyncio.Task[None] | None = None,
    ) -> None:
        """Begin.

        Args:
            name: its id.
            kept: the registry, with this subscription in it.
            shared: what it works with.
            feeds: those that are delivered to it.
            after: what has to end before.
        """
        self.made_of = wanted(kept)[name]
        self.feeds = feeds
        self.sink = str(msgspec.json.decode(self.made_of[0]).get("sink"))
        self.stores: list[PairStore] = []
        self.paused_until = kept.pauses.until.get(name)
        self._resumed = kept.pauses.resumed.get(name, 0)
        self._name = name
        self._shared = shared
        self._pairs: dict[str, Pair] = {}
        self._owned: list[Owned] = []
        self._subscriber: Subscriber | None = None
        self._idle_because: str | None = None
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(self._run(kept, after), name=f"subscription {name}")

    def news(self, feed: str) -> None:
        """Something new has come in this feed's stream."""
        if pair := self._pairs.get(feed):
            pair.news()

    def reload(self) -> None:
        """Somebody has parked deliveries, or asked for a replay."""
        for pair in self._pairs.values():
            pair.reload()

    def noted(self, until: datetime | None, *, resumed: int | None = None) -> None:
        """The registry says that the sink wants nothing before then; whoever wrote it.

        Args:
            until: by the store's clock; None: nothing is said.
            resumed: when an operator last ended such a pause, in milliseconds of it; None: that is as it was.
        """
        if resumed is not None and resumed != self._resumed:
            self._resumed, self.paused_until = resumed, None
            if self._subscriber:
                self._subscriber.resume()
        if until is not None and until != self.paused_until and self._subscriber:
            self._subscriber.paused_elsewhere(until)
        self.paused_until = until

    @property
    def resting(self) -> bool:
        """Whether nothing is sent any more until it is begun again: its sink or its failures have ended it."""
        return self._subscriber is not None and self._subscriber.resting

    @property
    def error(self) -> str | None:
        """How it fails here, in words; None where it does not."""
        return self._subscriber.error if self._subscriber else self._idle_because

    async def recall(self, feed: str, subscriber: Subscriber) -> None:
        """Hear what the registry says now: of pauses, and of how it does at a feed that another process had before.

        Raises:
            StoreError: see :meth:`poller.store.subscriptions.Registry.pauses`.
        """
        registry = self._shared.registry
        pauses = await registry.pauses()
        self.noted(pauses.until.get(self._name), resumed=pauses.resumed.get(self._name, 0))
        subscriber.took(feed, health_of(await registry.health(self._name, feed)))

    async def stop(self) -> None:
        """End in order: nothing more is started, what is in flight may end, leases are given back."""
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
            fresh = None  # the one before may have noted something on its way out
        while not self._stop.is_set():
            try:
                fresh = fresh or await self._shared.registry.all()
                self._shared.watch.worked(self._name)
                if self._name in wanted(fresh):
                    await self._deliver(fresh)
                else:  # paused or removed on the way; whoever looks at the registry ends this
                    await self._stop.wait()
            except StoreError as error:
                if isinstance(error, StoreUnavailable):
                    self._shared.watch.failed(self._name, str(error))
                else:
                    _log.warning("not delivering", subscription=self._name, error=str(error))
                fresh = None
                await unless(self._stop, _AGAIN)
            except (ConfigurationError, ValueError) as error:
                self._idle_because = why = one_line(str(error))
                _log.error("subscription cannot be delivered", subscription=self._name, error=str(error))
                await self._note_start(partial(after_no_start, at=self._shared.now(), error=why))
                await self._stop.wait()

    async def _deliver(self, kept: Subscriptions) -> None:
        written, secrets, brought = self.made_of
        settings = kept_subscription(written)
        for found in check_choices(self._shared.settings, settings):
            _log.warning("subscription matches nothing", subscription=self._name, reason=found.text)
        self.noted(kept.pauses.until.get(self._name), resumed=kept.pauses.resumed.get(self._name, 0))
        async with sink_of(settings, self._shared.environ, brought=brought, now=self._shared.now) as sink:
            if health_of(kept.health.get(self._name, {}).get(WHOLE)).unsent:
                await self._note_start(after_start)
            granted = None
            if settings.handshake:
                granted = await self._permitted(settings, sink, kept.handshakes.get(self._name))
                if granted is None:
                    return
            self._subscriber = Subscriber(
                subscription_of(settings, granted),
                sink,
                Form(settings, secrets, granted),
                self._shared.notes,
                unwell=health_of(kept.health.get(self._name, {}).get(WHOLE)).unwell,
                paused_until=self.paused_until,
                resumed=self._resumed,
                now=self._shared.now,
                clock=asyncio.get_running_loop().time,
            )
            await self._own_all(self._subscriber, kept.registered[self._name])

    async def _permitted(self, settings: SubscriptionSettings, sink: Sink, kept: bytes | None) -> Granted | None:
        public_url = self._shared.settings.http.public_url
        registry, now = self._shared.registry, self._shared.now
        return await permitted(
            settings, sink, registry, kept, self._stop, public_url=public_url, now=now, told=self._held_up
        )

    def _held_up(self, reason: str | None) -> None:
        self._idle_because = reason

    async def _note_start(self, change: Callable[[Health], Health]) -> None:
        """Write down whether it could begin here, where that is not written already."""
        with suppress(StoreError):  # the log says it all the same
            before = health_of(await self._shared.registry.health(self._name, WHOLE))
            if (after := change(before)) != before:
                await self._shared.notes.health(self._name, WHOLE, after)

    async def _own_all(self, subscriber: Subscriber, known: Registered) -> None:
        sharing, self.stores = self._shared.sharing, []
        self._owned = [self._owned_of(feed, subscriber, known) for feed in self.feeds]
        running = [asyncio.create_task(owned.run(), name=owned.name) for owned in self._owned]
        for owned in self._owned:
            if self._stop.is_set():  # told so before there was anybody to be told
                owned.stop()
            else:
                sharing.add(owned)
        try:
            await asyncio.gather(*running)
            if not running:  # none of its feeds is there now
                await self._stop.wait()
        finally:
            for owned in self._owned:
                sharing.drop(owned)
            await ended(*running)

    def _owned_of(self, feed: str, subscriber: Subscriber, known: Registered) -> Owned:
        store, clock = self._store_of(feed, known), asyncio.get_running_loop().time
        pair = Pair(feed, subscriber, store, now=self._shared.now, clock=clock, chance=random.random)
        self._pairs[feed] = pair
        self.stores.append(store)
        return Owned(
            _Informed(pair, self, subscriber),
            store,
            subscription=self._name,
            watch=self._shared.watch,
            changed=lambda: self._shares(subscriber),
            let_go=self._shared.sharing.tell,
        )

    def _shares(self, subscriber: Subscriber) -> None:
        """Use the part of the sink's limits that the pairs here are of all."""
        here = sum(owned.ours for owned in self._owned)
        if here:
            subscriber.share(Fraction(here, len(self._owned)))
        else:
            no_attempts_of(self._name)
        self._shared.sharing.wake()

    def _store_of(self, feed: str, known: Registered) -> PairStore:
        shared, prefix = self._shared, self._shared.settings.redis.prefix
        keys = FeedKeys.of(prefix, feed)
        return PairStore(
            shared.store.client,
            shared.scripts,
            PairKeys.of(prefix, feed, self._name),
            events=keys.events,
            feed_state=keys.state,
            since=known.since,
            asked=known.asked,
            subscription=self._name,
            nonce=nonce_of(shared.member),
            lease=shared.settings.lease.ttl,
        )


class _Informed:
    """A pair that begins with what was noted last, be it by another process, and leaves noted what it knows."""

    def __init__(self, pair: Pair, running: Running, subscriber: Subscriber) -> None:
        self.feed = pair.feed
        self.ready = pair.ready
        self.stop = pair.stop
        self._pair = pair
        self._running = running
        self._subscriber = subscriber

    async def run(self) -> None:
        await self._running.recall(self.feed, self._subscriber)
        try:
            await self._pair.run()
            with suppress(StoreError):  # some attempts are missing in the counts then
                await self._subscriber.note(self.feed)
        finally:
            self._subscriber.left(self.feed)
