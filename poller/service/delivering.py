"""The delivering role: every active subscription to each of its feeds, until told to stop.

The registry says which subscriptions there are. Its version is looked at every second: whatever changes it, a command
or another process, is carried out here within that time. A subscription that changes is stopped, in order, and begun
again from what is written. A number beside the version tells that a command has parked deliveries or wants a replay.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from datetime import datetime, timedelta
from typing import Final, Literal

import msgspec
import structlog

from poller.config.settings import Settings
from poller.config.subscribing import kept_subscription
from poller.delivery.announcements import Announcement, Kind
from poller.delivery.health import Health
from poller.delivery.owning import own
from poller.delivery.pair import Pair
from poller.delivery.subscriber import Subscriber
from poller.errors import ConfigurationError, StoreError
from poller.service.announcing import announce
from poller.service.handshaking import permitted
from poller.service.opening import OpenStore
from poller.service.sending import Form, sink_of, subscription_of
from poller.service.subscribing import filed
from poller.stopping import ended, unless
from poller.store.connection import blocking
from poller.store.deliveries import DeliveryScripts, PairStore
from poller.store.keys import FeedKeys, PairKeys, SubscriptionKeys
from poller.store.lease import keep_renewed
from poller.store.registrations import Paused, Subscriptions
from poller.store.stream import arrivals
from poller.store.subscriptions import Marks, Registry

_LOOK_AGAIN: Final = 1.0  # seconds between looks at the registry
_BLOCK: Final = timedelta(seconds=2)

_log = structlog.get_logger("poller.delivery")


class RegistryNotes:
    """What outlives a process, written into the registry and announced.

    See :class:`poller.delivery.subscriber.Notes`.
    """

    def __init__(self, registry: Registry, store: OpenStore, prefix: str) -> None:
        """Take where to write."""
        self._registry = registry
        self._client = store.client
        self._prefix = prefix

    async def until(self, subscription: str, moment: datetime) -> None:
        """The sink wants nothing before then."""
        await self._registry.note_until(subscription, moment)

    async def health(self, subscription: str, health: Health) -> None:
        """How it is doing."""
        await self._registry.note_health(subscription, msgspec.json.encode(health))

    async def rest(self, subscription: str, *, by: Literal["sink", "failures"], reason: str, at: datetime) -> None:
        """It gets nothing more until somebody resumes it; announced."""
        if await self._registry.pause(subscription, Paused(by, reason, at)) is None:
            kind = Kind.SUBSCRIPTION_PAUSED if by == "sink" else Kind.SUBSCRIPTION_DISABLED
            _log.error("subscription paused", subscription=subscription, by=by, reason=reason)
            await self._announce(Announcement(kind, subscription, at, reason))

    async def recovered(self, subscription: str, at: datetime) -> None:
        """It took an event again; announced."""
        _log.info("subscription recovered", subscription=subscription)
        await self._announce(Announcement(Kind.SUBSCRIPTION_RECOVERED, subscription, at, "it took an event again"))

    async def _announce(self, announcement: Announcement) -> None:
        await announce(self._client, self._prefix, announcement)


class _Running:
    """A subscription that is being delivered."""

    def __init__(self, made_of: object, stop: asyncio.Event, task: asyncio.Task[None]) -> None:
        self.made_of = made_of
        self.stop = stop
        self.task = task
        self.pairs: dict[str, Pair] = {}
        self.stores: list[PairStore] = []


class Deliverer:
    """All subscriptions of one process."""

    def __init__(
        self,
        settings: Settings,
        environ: Mapping[str, str],
        store: OpenStore,
        *,
        shebang: str,
        now: Callable[[], datetime],
    ) -> None:
        """Take what they work with.

        Args:
            settings: the configuration.
            environ: where credentials may be.
            store: open and ready.
            shebang: the first line of scripts.
            now: the wall clock, UTC.
        """
        self._settings = settings
        self._environ = environ
        self._store = store
        self._now = now
        self._prefix = settings.redis.prefix
        self._registry = Registry(store.client, SubscriptionKeys.of(self._prefix))
        self._notes = RegistryNotes(self._registry, store, self._prefix)
        self._scripts = DeliveryScripts(store.client, shebang=shebang)
        self._streams = {FeedKeys.of(self._prefix, feed).events: feed for feed in settings.feed_ids}
        self._running: dict[str, _Running] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Deliver until ``stop`` is set; what is in flight then may end.

        Raises:
            ConfigurationError: two subscriptions have one id.
        """
        tasks = [
            asyncio.create_task(self._renewed(), name="leases of deliveries"),
            asyncio.create_task(self._listen(), name="arrivals"),
        ]
        try:
            await self._synced(stop)
            seen: Marks | None = None
            while not stop.is_set():
                try:
                    marks = await self._registry.marks()
                    if seen is None or marks.version != seen.version:
                        kept = await self._registry.all()
                        await self._carry_out(kept)
                        marks = marks._replace(version=kept.version)
                    if seen is not None and marks.parked != seen.parked:
                        self._reload()
                    seen = marks
                except StoreError as error:
                    _log.warning("the subscriptions cannot be read", error=str(error))
                await unless(stop, _LOOK_AGAIN)
        finally:
            await self._stopped(list(self._running))
            await ended(*tasks)

    def _reload(self) -> None:
        for running in self._running.values():
            for pair in running.pairs.values():
                pair.reload()

    async def _synced(self, stop: asyncio.Event) -> None:
        """Tell the registry what the configuration says."""
        file = filed(self._settings)
        while not stop.is_set():
            try:
                synced = await self._registry.sync(file, self._now())
            except StoreError as error:
                _log.warning("the subscriptions cannot be registered", error=str(error))
                await unless(stop, _LOOK_AGAIN)
                continue
            for gone in synced.removed:
                _log.warning(
                    "subscription paused: the configuration does not have it any more",
                    subscription=gone,
                    advice=f"poller subscriptions remove {gone} drops it and what waits for it",
                )
            return

    async def _carry_out(self, kept: Subscriptions) -> None:
        """Stop what is not wanted any more or was changed, then begin what is not running."""
        wanted = {
            name: (bytes(registered.settings), kept.secrets.get(name, ()))
            for name, registered in kept.registered.items()
            if name not in kept.paused
        }
        await self._stopped([name for name, running in self._running.items() if wanted.get(name) != running.made_of])
        for name, made_of in wanted.items():
            if name in self._running:
                continue
            stop = asyncio.Event()
            task = asyncio.create_task(self._deliver(name, made_of, kept, stop), name=f"subscription {name}")
            self._running[name] = _Running(made_of, stop, task)

    async def _stopped(self, names: Sequence[str]) -> None:
        leaving = [self._running.pop(name) for name in names]
        for running in leaving:
            running.stop.set()
            for pair in running.pairs.values():
                pair.stop()
        if leaving:
            await asyncio.wait([running.task for running in leaving])

    async def _deliver(
        self, name: str, made_of: tuple[bytes, Sequence[str]], kept: Subscriptions, stop: asyncio.Event
    ) -> None:
        try:
            settings = kept_subscription(made_of[0])
            async with AsyncExitStack() as stack:
                sink = await stack.enter_async_context(sink_of(settings, self._environ))
                granted = None
                if settings.handshake:
                    granted = await permitted(
                        settings,
                        sink,
                        self._registry,
                        kept.handshakes.get(name),
                        stop,
                        public_url=self._settings.http.public_url,
                    )
                    if granted is None:
                        return
                subscriber = Subscriber(
                    subscription_of(settings, granted),
                    sink,
                    Form(settings, made_of[1], granted),
                    self._notes,
                    health=_health(kept.health.get(name)),
                    paused_until=kept.until.get(name),
                    now=self._now,
                    clock=asyncio.get_running_loop().time,
                )
                await self._own_all(name, settings.feeds or self._settings.feed_ids, subscriber, stop)
        except (ConfigurationError, ValueError) as error:
            _log.error("subscription cannot be delivered", subscription=name, error=str(error))
            await stop.wait()

    async def _own_all(self, name: str, feeds: Sequence[str], subscriber: Subscriber, stop: asyncio.Event) -> None:
        running = self._running[name]
        owning = []
        for feed in feeds:
            store = PairStore(
                self._store.client,
                self._scripts,
                PairKeys.of(self._prefix, feed, name),
                events=FeedKeys.of(self._prefix, feed).events,
                subscription=name,
                nonce=secrets.token_hex(16),
                lease=self._settings.lease.ttl,
            )
            pair = Pair(
                feed,
                subscriber,
                store,
                now=self._now,
                clock=asyncio.get_running_loop().time,
                chance=random.random,
            )
            running.pairs[feed] = pair
            running.stores.append(store)
            owning.append(asyncio.create_task(own(pair, store, subscription=name, stop=stop), name=f"{name} {feed}"))
        try:
            await asyncio.gather(*owning)
        finally:
            await ended(*owning)

    async def _renewed(self) -> None:
        await keep_renewed(_Held(self._running), ttl=self._settings.lease.ttl, sleep=asyncio.sleep)

    async def _listen(self) -> None:
        """Tell each pair when something new has come for it."""
        while True:
            client = blocking(self._store.url, block=_BLOCK)
            try:
                async for fresh in arrivals(client, self._streams, block=_BLOCK):
                    for key in fresh:
                        for running in self._running.values():
                            if pair := running.pairs.get(self._streams[key]):
                                pair.news()
            except StoreError as error:
                _log.warning("the streams cannot be followed", error=str(error))
                await asyncio.sleep(_LOOK_AGAIN)
            finally:
                with suppress(Exception):  # it is gone, whatever it says
                    await client.aclose()


class _Held:
    """The leases of all pairs, as they are when they are looked at."""

    def __init__(self, running: Mapping[str, _Running]) -> None:
        self._running = running

    def __iter__(self) -> Iterator[PairStore]:
        return iter([store for running in self._running.values() for store in running.stores])


def _health(kept: bytes | None) -> Health:
    if kept is None:
        return Health()
    try:
        return msgspec.json.decode(kept, type=Health)
    except msgspec.MsgspecError:  # another version's
        return Health()
