"""The subscriptions as they are kept: one registry for all processes, whoever changes it.

Law: registry, secrets, credentials and pauses change together with the version, in one script, and only from the
version that the change was planned on; else it is planned anew. So a process that looks at the version once a second
misses nothing.

Marks (how a subscription does, when its sink wants to be left alone) are noted without a version, for only whoever
delivers needs them. They are noted of registered subscriptions alone: a removed one does not come back by a late mark.

Refuses to know what settings, credentials, health and handshakes mean, and which feeds there are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple, TypeVar, cast

from redis.asyncio import Redis

from poller.errors import StoreError
from poller.store import registering
from poller.store.connection import translated
from poller.store.keys import SubscriptionKeys
from poller.store.registering import PARTS, Following, Synced, Write
from poller.store.registrations import (
    LONGEST_PAUSE,
    WHOLE,
    Paused,
    SinkPauses,
    Subscriptions,
    by_feed,
    health_field,
    milliseconds_of,
    since_field,
    sink_pauses,
    subscriptions_of,
)
from poller.store.registry_scripts import ALL, ALL_OF, CHANGE, NOTE, NOTE_PAUSE
from poller.store.settling import Contested, Settled, settling

T = TypeVar("T")
_NONE: Final = Subscriptions()


class Marks(NamedTuple):
    """Numbers to be compared for being other ones than before.

    Attributes:
        version: of the registry.
        parked: of what was parked by commands.
        registered: how many subscriptions there are.
    """

    version: int
    parked: int
    registered: int


class Registry:
    """The subscriptions. Any number of processes may have one; each method may raise StoreError.

    See :func:`~poller.store.connection.translated` for what that means of what was written.
    """

    def __init__(self, client: Redis, keys: SubscriptionKeys) -> None:
        """Take the client, without retries of its own, and where the subscriptions are kept."""
        self._client = client
        self._keys = keys

    async def version(self) -> int:
        """The version; compare it for being another one, not for being larger: a store may lose its last writes."""
        with translated(self._client):
            return int(await self._client.get(self._keys.version) or 0)

    async def marks(self) -> Marks:
        """What whoever delivers looks at again and again."""
        with translated(self._client):
            asking = self._client.pipeline(transaction=False)
            asking.mget(self._keys.version, self._keys.parked)
            asking.hlen(self._keys.registry)
            (version, parked), registered = await asking.execute()
        return Marks(int(version or 0), int(parked or 0), registered)

    async def tell_parked(self) -> None:
        """Have whoever delivers look for deliveries that were parked and for replays, within a second or two."""
        with translated(self._client):
            await self._client.incr(self._keys.parked)

    async def all(self) -> Subscriptions:
        """All that is kept, as of one instant.

        Raises:
            StoreError: also where a part of it cannot be read; the message names it.
        """
        keys = self._keys
        with translated(self._client):
            names = [keys.version, *(getattr(keys, part) for part in PARTS)]
            version, *flat, at = await self._client.eval(ALL, len(names), *names)
        hashes = [dict(zip(one[::2], one[1::2], strict=True)) for one in flat]
        try:
            return subscriptions_of(version or None, hashes, at)
        except ValueError as error:
            raise StoreError(f"{keys.registry} and its neighbours hold what cannot be read: {error}") from None

    async def sync(
        self, file: Sequence[tuple[str, bytes]], now: datetime, before: Subscriptions = _NONE, *, member: str = ""
    ) -> Synced:
        """Make those of the file what it says: new ones, changed ones, those that are gone, those that are back.

        Args:
            file: id and settings in JSON, for each; equal settings are equal bytes.
            now: UTC.
            before: what was there, where the store has lost it.
            member: the process whose file it is.

        Raises:
            ConfigurationError: one of them has the id of a subscription that was added at run time; nothing changed.
        """
        return await self._change(lambda kept: registering.syncing(kept, dict(file), now, before, member=member))

    async def settle(
        self, kept: Subscriptions, found: Contested, member: str, there: Collection[str], now: datetime
    ) -> Settled:
        """See :func:`~poller.store.settling.settling`. Nothing, where another has changed anything since ``kept``."""
        writes, settled = settling(kept, found, member, there, now)
        return settled if writes and await self._write(kept.version, writes) else Settled()

    async def add(
        self,
        subscription: str,
        settings: bytes,
        secrets: Sequence[str],
        now: datetime,
        *,
        credential: bytes | None = None,
    ) -> None:
        """Add one at run time; see :func:`~poller.store.registering.adding`.

        Raises:
            SubscriptionTaken: there is one of this id.
        """
        await self._change(
            lambda kept: (registering.adding(kept, subscription, settings, secrets, now, credential=credential), None)
        )

    async def change(
        self, subscription: str, settings: bytes, following: Following = lambda _, credential: credential
    ) -> None:
        """Have one be this from now on, in JSON; its secrets, its pause and how it does stay.

        Args:
            subscription: its id.
            settings: in JSON.
            following: says what becomes of its credential; may be asked more than once.

        Raises:
            SubscriptionUnknown: there is none of this id.
        """
        await self._change(lambda kept: (registering.changing(kept, subscription, settings, following), None))

    async def remove(self, subscription: str) -> None:
        """Delete all that is kept of one here; what it has at its feeds: :func:`forget`.

        Raises:
            SubscriptionUnknown: there is none of this id.
        """
        await self._change(lambda kept: (registering.removing(kept, subscription), None))

    async def pause(
        self, subscription: str, pause: Paused, renewed: Callable[[bytes], bytes] | None = None
    ) -> Paused | None:
        """Let it rest; the pause that it was in before, which stays unless it was ``removed``. None: it was active.

        Args:
            subscription: its id.
            pause: why.
            renewed: makes of what is kept of the whole one's health, which may be nothing, that of one that rests.

        Raises:
            SubscriptionUnknown: there is none of this id.
        """
        return await self._change(lambda kept: registering.pausing(kept, subscription, pause, renewed))

    async def resume(
        self, subscription: str, renewed: Callable[[bytes], bytes] = lambda health: health
    ) -> Paused | None:
        """Let it go on; the pause that it was in. None: it was active, and is.

        Args:
            subscription: its id.
            renewed: makes of its health at a feed, where there is some, that of one that starts again. What is noted
                of its health in the same instant may be overwritten.

        Raises:
            SubscriptionUnknown: there is none of this id.
        """
        return await self._change(lambda kept: registering.resuming(kept, subscription, renewed))

    async def note_health(self, subscription: str, feed: str, health: bytes) -> bool:
        """Keep how it does at a feed. False: there is no such subscription."""
        return await self._note(NOTE, self._keys.health, subscription, health, health_field(subscription, feed))

    async def healths(self, subscription: str) -> dict[str, bytes]:
        """How it does at each feed, as it is kept."""
        with translated(self._client):
            found = cast("dict[bytes, bytes]", await self._client.hgetall(self._keys.health))
        kept = by_feed({field.decode(): value for field, value in found.items()})
        return dict(kept.get(subscription, {}))

    async def health(self, subscription: str, feed: str) -> bytes | None:
        """How it does at a feed, as it is kept."""
        with translated(self._client):
            field = health_field(subscription, feed)
            return cast("bytes | None", await self._client.hget(self._keys.health, field))

    async def renew_health(self, subscription: str, renewed: Callable[[bytes], bytes]) -> bool:
        """Make another one of what is kept of the whole one's health; whether it was another one before.

        Where several do it at once, one of them is told True.
        """

        def plan(kept: Subscriptions) -> tuple[list[Write], bool]:
            there = WHOLE in kept.health.get(subscription, {})
            writes = registering.renewing(kept, subscription, renewed) if there else []
            return writes, bool(writes)

        return await self._change(plan)

    async def note_handshake(self, subscription: str, handshake: bytes) -> bool:
        """Keep whether its sink has granted events. False: there is no such subscription."""
        return await self._note(NOTE, self._keys.handshakes, subscription, handshake, subscription)

    async def handshake(self, subscription: str) -> bytes | None:
        """What is kept of its sink's permission, opaque."""
        with translated(self._client):
            kept: bytes | None = await self._client.hget(self._keys.handshakes, subscription)  # type: ignore[assignment] # bytes, as the client is set up
        return kept

    async def pauses(self) -> SinkPauses:
        """The pauses that sinks have asked for.

        Raises:
            StoreError: also where they cannot be read.
        """
        with translated(self._client):
            flat, at = await self._client.eval(ALL_OF, 1, self._keys.until)
        try:
            kept = {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}
            return sink_pauses(kept, int(at))
        except (ValueError, OverflowError):
            raise StoreError(f"{self._keys.until} holds what cannot be read") from None

    async def note_until(self, subscription: str, until: datetime) -> bool:
        """Its sink wants nothing until then, by the store's clock, or until the later moment that is kept already.

        For no longer than a pause may last from now. False: as above.
        """
        longest = LONGEST_PAUSE // timedelta(milliseconds=1)
        arguments = (milliseconds_of(until), longest, since_field(subscription))
        return await self._note(NOTE_PAUSE, self._keys.until, subscription, *arguments)

    async def _change(self, plan: Callable[[Subscriptions], tuple[Sequence[Write], T]]) -> T:
        while True:  # each turn beyond the first means that another process has changed something
            kept = await self.all()
            writes, result = plan(kept)
            if not writes or await self._write(kept.version, writes):
                return result

    async def _write(self, version: int, writes: Iterable[Write]) -> bool:
        keys = self._keys
        names = [keys.version, *(getattr(keys, part) for part in PARTS)]
        arguments: list[str | bytes | int] = [version]
        for part, name, value in writes:
            arguments += [PARTS.index(part) + 2, name, value or b""]
        with translated(self._client):
            return bool(await self._client.eval(CHANGE, len(names), *names, *arguments))

    async def _note(self, script: str, key: str, subscription: str, *arguments: str | bytes | int) -> bool:
        with translated(self._client):
            return bool(await self._client.eval(script, 2, self._keys.registry, key, subscription, *arguments))
