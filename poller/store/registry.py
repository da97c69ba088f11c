"""The registry of subscriptions in the store, shared by all processes.

A change is planned by a pure function of :mod:`poller.store.subscriptions` on all that is kept, and written by one
script only while nothing else has changed since the reading that it was planned on; else it is planned again. Marks
(health, a sink's pause, its handshake) are written without a version, for only the process that delivers needs them.

**Invariants**

- Registry, secrets, credentials and pauses change together with the version, in one script, which also writes a digest
  of the change. A process that reads both now and then misses nothing, even where the store goes back to an older copy
  and counts the same version again. A change by an earlier version of the program has no digest, but counts.
- Two processes that change something at the same instant come one after the other; neither overwrites what it has not
  seen. What is as it should be is not written.
- On a server that is out of memory nothing is added at run time, and the subscriptions that there are can be changed:
  removing one frees memory, and so does resuming one. Those of a file are registered: without that no process that
  starts with a changed file would deliver, and nothing would free memory.
- A mark that comes late does not bring a removed subscription back: it is written only for a registered one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec
from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError

from poller.errors import StoreError
from poller.redis.errors import translated
from poller.store.keys import SubscriptionKeys
from poller.store.members import ListedSubscriptions
from poller.store.recovery import last_entries
from poller.store.scripts import SHEBANG, CallGathering, ScriptBatch, ScriptCall, ScriptSender, in_any_case, lua
from poller.store.subscriptions import (
    LONGEST_PAUSE,
    NO_ENDS,
    PARTS,
    WHOLE,
    FilePauses,
    Following,
    Paused,
    Registered,
    RestoredPauses,
    SinkPauses,
    Subscriptions,
    Write,
    by_feed,
    change_of,
    health_field,
    paused_by,
    plan_addition,
    plan_change,
    plan_file,
    plan_file_pauses,
    plan_health,
    plan_missing,
    plan_pause,
    plan_removal,
    plan_rest,
    plan_restoration,
    plan_resumption,
    since_field,
    sink_pauses,
    subscriptions_of,
)

CHANGE: Final = lua("change_subscriptions")

ALL: Final = lua("read_subscriptions")

VERSIONS: Final = lua("registry_versions")

ALL_OF: Final = lua("read_sink_pauses")

NOTE: Final = lua("note_mark")

NOTE_PAUSE: Final = lua("note_sink_pause")

_HEALTHS: Final = 200  # in one request
_TRIES: Final = 3  # to change a health that others change

T = TypeVar("T")


class RegistryVersions(NamedTuple):
    """What differs from the last reading if the registry has changed.

    Attributes:
        version: of the registry.
        parked: of what was parked by commands.
        registered: how many subscriptions there are.
        secrets: how many of them have secrets that were made here.
        credentials: how many have a credential that a request has brought.
        paused: how many are paused.
        change: the last one, see :attr:`~poller.store.subscriptions.Subscriptions.changes`; empty: none.
    """

    version: int
    parked: int
    registered: int
    secrets: int = 0
    credentials: int = 0
    paused: int = 0
    change: str = ""

    def is_loss(self, kept: Subscriptions) -> bool:
        """Whether the store has lost something of what was read: it changes only together with the version.

        Another change at the same version has come in the place of the one that was read. If more have come than were
        lost, only the whole registry shows it: :meth:`~poller.store.subscriptions.Subscriptions.continues`.
        """
        parts = (
            (self.registered, kept.registered),
            (self.secrets, kept.secrets),
            (self.credentials, kept.credentials),
            (self.paused, kept.paused),
        )
        if self.version != kept.version:
            return self.version < kept.version
        return self.change != kept.change or any(count < len(part) for count, part in parts)


class Registry:
    """The subscriptions. Any number of processes may have one; each method may raise StoreError.

    See :func:`~poller.redis.client.translated` for what that means of what was written.
    """

    def __init__(self, client: Redis, keys: SubscriptionKeys) -> None:
        """Take the client, without retries of its own, and where the subscriptions are kept."""
        self._client = client
        self._keys = keys
        self._batch = ScriptBatch(client)
        self._healths: CallGathering[ScriptCall] = CallGathering(self._noted, weight=lambda _: 1, most=_HEALTHS)

    async def version(self) -> int:
        """The version; compare it for being another one, not for being larger: a store may lose its last writes."""
        with translated(self._client):
            found = await self._client.get(self._keys.version)
        return _number(self._keys.version, found)

    async def marks(self, send: ScriptSender | None = None) -> RegistryVersions:
        """The numbers that a process that delivers polls for changes.

        Args:
            send: sends the script that reads them; by default it is sent now, by itself.
        """
        keys = self._keys
        parts = (keys.registry, keys.secrets, keys.credentials, keys.paused)
        version, parked, change, *counts = await (send or self._batch.run)(
            ScriptCall(VERSIONS, (keys.version, keys.parked, keys.changes, *parts))
        )
        numbers = RegistryVersions(_number(keys.version, version), _number(keys.parked, parked), *counts)
        return numbers._replace(change=change.decode("ascii", "replace"))

    async def tell_parked(self) -> None:
        """Make the process that delivers read parked deliveries and replays, within a second or two."""
        with translated(self._client):
            await self._client.incr(self._keys.parked)

    async def all(self) -> Subscriptions:
        """All that is kept, as of one instant."""
        keys = self._keys
        with translated(self._client):
            names = [keys.version, keys.changes, *(getattr(keys, part) for part in PARTS)]
            version, changes, *flat, at = await self._client.eval(ALL, len(names), *names)
        _number(keys.version, version)
        hashes = [dict(zip(one[::2], one[1::2], strict=True)) for one in flat]
        return subscriptions_of(version or None, hashes, at, changes)

    async def last_entries(self, prefix: str, feeds: Iterable[str]) -> dict[str, str]:
        """See :func:`poller.store.recovery.last_entries`; to be read before what is asked for is written."""
        return await last_entries(self._client, prefix, feeds)

    async def sync(
        self,
        file: Sequence[tuple[str, bytes]],
        now: datetime,
        before: Subscriptions | None = None,
        *,
        ends: Mapping[str, str] = NO_ENDS,
    ) -> tuple[str, ...]:
        """Register the subscriptions of a file with its settings. Which of them rest says :meth:`reconcile`.

        Args:
            file: id and settings in JSON, for each; equal settings are equal bytes.
            now: UTC.
            before: what was there, where the store has lost it; an id that one of run time has is left out then.
            ends: :meth:`last_entries` of all feeds.

        Returns:
            The ids of those that are paused as they were before.

        Raises:
            ConfigurationError: nothing was lost, and one of them has the id of a subscription that was added at run
                time; nothing changed.
        """

        def plan(kept: Subscriptions) -> tuple[list[Write], tuple[str, ...]]:
            writes = plan_file(kept, dict(file), now, before, ends)
            return writes, paused_by(writes)

        return await self._change(plan)

    async def add_missing(
        self,
        file: Sequence[tuple[str, bytes]],
        now: datetime,
        before: Subscriptions,
        *,
        ends: Mapping[str, str] = NO_ENDS,
    ) -> tuple[str, ...]:
        """Register those subscriptions of a file that are not registered.

        Args:
            file: as of :meth:`sync`.
            now: UTC.
            before: those that are here come back as they are here, pauses included.
            ends: :meth:`last_entries` of all feeds.

        Returns:
            The ids of those that this has registered.
        """

        def plan(kept: Subscriptions) -> tuple[list[Write], tuple[str, ...]]:
            writes = plan_missing(kept, dict(file), now, before, ends)
            return writes, tuple(name for part, name, _ in writes if part == "registry")

        return await self._change(plan)

    async def restore(
        self, before: Subscriptions, renewed: Callable[[bytes], bytes] = lambda health: health
    ) -> RestoredPauses:
        """Write back what was lost since; see :func:`~poller.store.subscriptions.plan_restoration`."""
        return await self._change(lambda kept: plan_restoration(kept, before, renewed))

    async def reconcile(self, listed: Callable[[], Awaitable[ListedSubscriptions]], now: datetime) -> FilePauses:
        """Pause and resume by :func:`plan_file_pauses`.

        Args:
            listed: reads what the live processes list; is called after each reading of the registry.
            now: UTC.
        """
        while True:
            kept = await self.all()
            writes, changed = plan_file_pauses(kept, await listed(), now)
            if not writes or await self._write(kept, writes):
                return changed

    async def add(
        self,
        subscription: str,
        settings: bytes,
        secrets: Sequence[str],
        now: datetime,
        *,
        credential: bytes | None = None,
        ends: Mapping[str, str] = NO_ENDS,
    ) -> None:
        """Add one at run time; see :func:`~poller.store.subscriptions.plan_addition`.

        Raises:
            SubscriptionTaken: there is one of this id.
        """
        await self._change(
            lambda kept: (
                plan_addition(kept, subscription, settings, secrets, now, credential=credential, ends=ends),
                None,
            ),
            adds=True,
        )

    async def change(
        self,
        subscription: str,
        settings: bytes,
        following: Following = lambda _, credential: credential,
        *,
        ends: Mapping[str, str] = NO_ENDS,
    ) -> None:
        """Change its settings; its secrets, its pause and its health stay.

        Args:
            subscription: its id.
            settings: in JSON.
            following: says what becomes of its credential; may be asked more than once.
            ends: :meth:`last_entries` of its feeds.

        Raises:
            SubscriptionUnknown: there is none of this id.
        """
        await self._change(lambda kept: (plan_change(kept, subscription, settings, following, ends), None))

    async def remove(self, subscription: str, since: datetime | None = None) -> None:
        """Delete all that is kept of one here; what it has at its feeds: :func:`forget`.

        Args:
            subscription: its id.
            since: when it was first known; one of this id that was added later stays. With it: only while paused.

        Raises:
            SubscriptionUnknown: there is none of this id.
            SubscriptionResumed: it is not paused any more.
        """
        await self._change(lambda kept: (plan_removal(kept, subscription, since), None))

    async def pause(self, subscription: str, pause: Paused, since: datetime | None = None) -> Paused | None:
        """Pause it. Returns the pause before, which stays unless it was ``removed``; None: it was active.

        ``since``: as of :meth:`remove`.

        Raises:
            SubscriptionUnknown: there is none of this id.
        """
        return await self._change(lambda kept: plan_pause(kept, subscription, pause, since))

    async def rest(
        self, subscription: str, pause: Paused, *, sink: str, renewed: Callable[[bytes], bytes] = lambda health: health
    ) -> bool:
        """Pause it because of what its sink did; see :func:`~poller.store.subscriptions.plan_rest`."""
        return await self._change(lambda kept: plan_rest(kept, subscription, pause, sink=sink, renewed=renewed))

    async def resume(
        self, subscription: str, renewed: Callable[[bytes], bytes] = lambda health: health
    ) -> Paused | None:
        """Resume it. Returns the pause that it ends; None: it was active.

        Args:
            subscription: its id.
            renewed: makes of its health at a feed, where there is some, that of one that starts again. What is noted
                of its health in the same instant may be overwritten.

        Raises:
            SubscriptionUnknown: there is none of this id.
        """
        return await self._change(lambda kept: plan_resumption(kept, subscription, renewed))

    async def note_health(self, subscription: str, feed: str, health: bytes) -> bool:
        """Store its health at a feed. False: there is no such subscription."""
        arguments = (subscription, health, health_field(subscription, feed), "", "")
        with translated(self._client):
            return bool(await self._healths.ask(ScriptCall(NOTE, (self._keys.registry, self._keys.health), arguments)))

    async def _noted(self, calls: Sequence[ScriptCall]) -> Sequence[Any]:
        """What each of these calls is answered; those of many subscriptions are one request."""
        answers = [None] if len(calls) == 1 else await self._batch.send(calls, one_tag=True)
        return [
            await self._eval(call.source, len(call.keys), *call.keys, *call.arguments)
            if answer is None or _is_out_of_memory(answer)
            else answer
            for call, answer in zip(calls, answers, strict=True)
        ]

    async def change_health(
        self, subscription: str, feed: str, changed: Callable[[bytes | None], bytes | None]
    ) -> None:
        """Replace its health at a feed, as stored, by what is made of it; None leaves it.

        It is made again if the health has changed meanwhile, as when an operator has resumed the subscription.
        """
        field = health_field(subscription, feed)
        for _ in range(_TRIES):
            kept = await self.health(subscription, feed)
            health = changed(kept)
            if health is None:
                return
            if await self._mark(NOTE, self._keys.health, subscription, health, field, "", kept or b""):
                return

    async def healths(self, subscription: str) -> dict[str, bytes]:
        """Its health at each feed, as stored."""
        with translated(self._client):
            found = cast("dict[bytes, bytes]", await self._client.hgetall(self._keys.health))
        kept = by_feed({field.decode("utf-8", "replace"): value for field, value in found.items()})
        return dict(kept.get(subscription, {}))

    async def health(self, subscription: str, feed: str) -> bytes | None:
        """Its health at a feed, as stored."""
        with translated(self._client):
            field = health_field(subscription, feed)
            return cast("bytes | None", await self._client.hget(self._keys.health, field))

    async def renew_health(self, subscription: str, renewed: Callable[[bytes], bytes]) -> bool:
        """Replace the health of the whole subscription; returns whether that changed it.

        Of several concurrent calls, one returns True.
        """

        def plan(kept: Subscriptions) -> tuple[list[Write], bool]:
            there = WHOLE in kept.health.get(subscription, {})
            writes = plan_health(kept, subscription, renewed) if there else []
            return writes, bool(writes)

        return await self._change(plan)

    async def note_handshake(
        self, subscription: str, handshake: bytes, *, sink: str | None = None, before: bytes = b""
    ) -> bool:
        """Store whether its sink has granted events.

        Args:
            subscription: its id.
            handshake: opaque.
            sink: which one that is; None: that of its settings, whichever it is.
            before: what must be stored until now; nothing: whatever is.

        Returns:
            False: there is no such subscription, it has another sink now, or something else is stored.
        """
        arguments = (handshake, subscription, _required(sink), before)
        return await self._mark(NOTE, self._keys.handshakes, subscription, *arguments)

    async def handshake(self, subscription: str) -> bytes | None:
        """The stored permission of its sink, opaque."""
        with translated(self._client):
            kept: bytes | None = await self._client.hget(self._keys.handshakes, subscription)  # type: ignore[assignment] # bytes, as the client is set up
        return kept

    async def is_current(self, subscription: str, settings: bytes, since: datetime) -> bool:
        """Whether it is registered with these settings since then, and not paused."""
        with translated(self._client):
            asking = self._client.pipeline(transaction=False)
            asking.hget(self._keys.paused, subscription)  # first: who removes it pauses it before
            asking.hget(self._keys.registry, subscription)
            paused, found = await asking.execute()
        if paused is not None or found is None:
            return False
        try:
            registered = msgspec.json.decode(found, type=Registered)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        return (bytes(registered.settings), registered.since) == (settings, since)

    async def pauses(self, send: ScriptSender | None = None) -> SinkPauses:
        """The pauses that sinks have asked for.

        Args:
            send: sends the script that reads them; by default it is sent now, by itself.
        """
        flat, at = await (send or self._batch.run)(ScriptCall(ALL_OF, (self._keys.until,)))
        kept = {name.decode("utf-8", "replace"): value for name, value in zip(flat[::2], flat[1::2], strict=True)}
        return sink_pauses(kept, int(at))

    async def note_pause(self, subscription: str, span: timedelta, *, sink: str | None = None) -> bool:
        """Its sink wants nothing for so long from now, or until the later moment that is kept already.

        For no longer than a pause may last. The moment is made by the store: its clock may have been set since this
        process read it. ``sink`` and the answer are those of :meth:`note_handshake`.
        """
        longest = LONGEST_PAUSE // timedelta(milliseconds=1)
        arguments = (span // timedelta(milliseconds=1), longest, since_field(subscription), _required(sink))
        return await self._mark(NOTE_PAUSE, self._keys.until, subscription, *arguments)

    async def _change(self, plan: Callable[[Subscriptions], tuple[Sequence[Write], T]], *, adds: bool = False) -> T:
        while True:  # each turn beyond the first means that another process has changed something
            kept = await self.all()
            writes, result = plan(kept)
            if not writes or await self._write(kept, writes, adds=adds):
                return result

    async def _write(self, kept: Subscriptions, writes: Sequence[Write], *, adds: bool = False) -> bool:
        keys = self._keys
        names = [keys.version, keys.changes, *(getattr(keys, part) for part in PARTS)]
        arguments: list[str | bytes | int] = [kept.version, kept.change, change_of(kept, writes)]
        for part, name, value in writes:
            arguments += [PARTS.index(part) + 3, name, value or b""]
        return await self._eval(CHANGE, len(names), *names, *arguments, adds=adds)

    async def _mark(self, script: str, key: str, subscription: str, *arguments: str | bytes | int) -> bool:
        return await self._eval(script, 2, self._keys.registry, key, subscription, *arguments)

    async def _eval(self, script: str, keys: int, *arguments: str | bytes | int, adds: bool = False) -> bool:
        with translated(self._client):
            try:
                return bool(await self._client.eval(script, keys, *arguments))
            except OutOfMemoryError:  # nothing was written: the first write was refused
                if adds:
                    raise
                # Only servers that know the shebang give this error for a script.
                return bool(await self._client.eval(in_any_case(SHEBANG) + script, keys, *arguments))


def _is_out_of_memory(answer: Any) -> bool:
    return isinstance(answer, StoreError) and isinstance(answer.__cause__, OutOfMemoryError)


def _number(key: str, found: bytes | str | None) -> int:
    try:
        return int(found or 0)
    except ValueError:
        raise StoreError(f"{key} holds no number; another program has written it: delete it") from None


def _required(sink: str | None) -> bytes:
    """What stored settings with this sink hold; None: any sink."""
    return b"" if sink is None else msgspec.json.encode({"sink": sink})[1:-1]
