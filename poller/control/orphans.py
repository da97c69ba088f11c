"""Stored feeds that are not configured: orphaned feeds of this prefix, and those of another one.

A feed is orphaned if no running process has it configured. If the store has no configured feed at all, it is empty, or
the prefix is wrong.

**Invariants**

- Undelivered events of an orphaned feed are delivered; the stream needs no source for that.
- A feed is forgotten only while no live process has it configured, and under its lease, so that no round writes
  meanwhile. The processes are informed before the keys are deleted.
- An empty store is no error; the log says that it is empty, or which other prefix has the same feeds. The search has a
  time limit, so that a large store that other programs use as well delays nothing.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Final

import msgspec
import structlog
from redis.asyncio import Redis

from poller.clock import Clock
from poller.config.settings import Settings
from poller.config.types import did_you_mean
from poller.control.subscriptions import registry_of, until_let_go
from poller.errors import ConfigurationError, PollerError, StoreError, StoreRefused
from poller.redis.client import servers
from poller.redis.errors import translated
from poller.store.clock import StoreClock
from poller.store.consumer_state import forget_feed
from poller.store.keys import (
    ConsumerKeys,
    FeedKeys,
    GroupKeys,
    MemberKeys,
    SubscriptionKeys,
    group_of,
    remembered_key,
)
from poller.store.lease import Lease, LeaseScripts, in_whose_hands, member_name, nonce_of
from poller.store.members import MemberConfiguration, MemberList, Members, members_seen
from poller.store.recovery import known_feeds, store_unread
from poller.store.snapshots import FORM
from poller.store.stats import Backlog, Pair, backlogs
from poller.store.stream import EARLIEST, EntryId, consumer_groups, last_id
from poller.store.subscriptions import UNREADABLE, Registered, Subscriptions, health_field

SEARCH_SECONDS: Final = 1.0
LEASE: Final = timedelta(seconds=15)
LEASE_PATIENCE: Final = 3.0  # seconds; trimming a stream holds the feed's lease for milliseconds
_PAUSE: Final = 0.1
_OURS: Final = group_of("")
_STATES_AT_ONCE: Final = 500
_EVERY_STATE: Final = "*:{*/*}:state"
_MARKS: Final = ("place", "replay_after", "replay_to")

_store_log = structlog.get_logger("poller.store")


class OrphanedBacklog(msgspec.Struct, frozen=True):
    """The backlog of one subscription at an orphaned feed.

    Attributes:
        subscription: its id.
        events: undelivered events, scheduled retries included; None: unknown.
        dead_letters: the number of dead letters.
        paused: whether the subscription is paused, so that the events stay.
        owner: the process that delivers them; None: none.
    """

    subscription: str
    events: int | None
    dead_letters: int
    paused: bool
    owner: str | None


class OrphanedFeed(msgspec.Struct, frozen=True):
    """An entry of ``orphaned_feeds`` in ``poller status --json``.

    Attributes:
        feed: ``SOURCE/NAME``.
        stream_length: the number of events in its stream.
        undelivered: the sum of undelivered events over all subscriptions.
        subscriptions: those with undelivered events or dead letters.
        error: why it cannot be read; None: it can.
    """

    feed: str
    stream_length: int
    undelivered: int
    subscriptions: tuple[OrphanedBacklog, ...] = ()
    error: str | None = None

    @property
    def text(self) -> str:
        """The state and the remedy, in words."""
        if self.error is not None:
            return f"no running configuration has this feed, and it cannot be read: {self.error}"
        waiting = [one for one in self.subscriptions if one.events != 0]
        names = ", ".join(f"{one.subscription} (paused)" if one.paused else one.subscription for one in waiting)
        waits = f"{self.undelivered or 'some'} events wait for {names}" if names else "no event waits"
        first = "wait until they are delivered, then " if names else ""
        return (
            f"no running configuration has this feed; its stream holds {self.stream_length} events, and {waits}. If it "
            f"is still needed, put it back into the configuration. If not: {first}`poller feeds forget {self.feed}` "
            "deletes its stream, what still waits, and its dead letters"
        )


async def orphaned_feeds(
    client: Redis,
    settings: Settings,
    *,
    now: datetime,
    seen: MemberList | None = None,
    kept: Subscriptions | None = None,
) -> list[OrphanedFeed]:
    """All orphaned feeds with their backlogs. ``seen``, ``kept``: members and registry, if just read.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    prefix = settings.redis.prefix
    seen = seen or await members_seen(client, MemberKeys.of(prefix))
    names = orphaned(await known_feeds(client, remembered_key(prefix)), seen, settings.feed_ids)
    if not names:
        return []
    kept = kept or await registry_of(settings, client).all()
    found = []
    for name in names:
        try:
            found.append(await orphaned_feed(client, prefix, name, kept, now=now))
        except StoreRefused as error:
            found.append(OrphanedFeed(name, 0, 0, error=str(error)))
    return found


async def orphaned_feed(client: Redis, prefix: str, feed: str, kept: Subscriptions, *, now: datetime) -> OrphanedFeed:
    """An orphaned feed with its backlogs.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    with translated(client):
        length = await client.xlen(FeedKeys.of(prefix, feed).events)
    found = await backlogs(client, prefix, [(name, feed) for name in kept.registered], now=now)
    waiting = await waiting_at(client, prefix, feed, kept, now=now, found=found)
    backs = []
    for (name, _), one in sorted(found.items()):
        if name not in waiting and not one.dead_letters:
            continue
        unknown = name in waiting and one.entries is None and not one.parked
        events = None if unknown else (one.entries or 0) + one.parked
        backs.append(OrphanedBacklog(name, events, one.dead_letters, name in kept.paused, one.owner))
    return OrphanedFeed(feed, length, sum(one.events or 0 for one in backs), tuple(backs))


async def waiting_at(
    client: Redis,
    prefix: str,
    feed: str,
    kept: Subscriptions,
    *,
    now: datetime,
    found: Mapping[Pair, Backlog] | None = None,
) -> frozenset[str]:
    """The subscriptions that have a backlog at an orphaned feed.

    Their stored state decides, not their present settings: a subscription that names its feeds may name the feed's new
    name now. A subscription without state at the feed counts if it wants the feed and starts before its last entry.
    ``found``: the backlogs of all subscriptions, if just read.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    names = list(kept.registered)
    found = found or await backlogs(client, prefix, [(name, feed) for name in names], now=now)
    last = await last_id(client, FeedKeys.of(prefix, feed).events)
    with translated(client):
        asking = client.pipeline(transaction=False)
        for name in names:
            asking.hmget(ConsumerKeys.of(prefix, feed, name).state, list(_MARKS))
        marks = await asking.execute()
    return frozenset(
        name
        for name, marked in zip(names, marks, strict=True)
        if _is_left(found[name, feed], marked, kept.registered[name], feed, last)
    )


def _is_left(backlog: Backlog, marks: list[bytes | None], registered: Registered, feed: str, last: str) -> bool:
    place, replay_after, replay_to = marks
    if backlog.parked or (replay_after is not None and replay_to is not None):
        return True
    if backlog.seconds is not None:  # there is a group; if its lag is unknown, it may be behind
        return backlog.entries is None or backlog.entries > 0
    if last == EARLIEST:
        return False
    return _is_wanted(registered, feed, last) if place is None else EntryId.parse(last) > EntryId.parse(place)


def _is_wanted(registered: Registered, feed: str, last: str) -> bool:
    """Whether a subscription without state at a feed wants it and starts before its last entry."""
    outline = registered.outline
    if outline is UNREADABLE or not outline.wants(feed):
        return False
    after = registered.new_after(feed)
    return outline.is_from_earliest or (after != "" and EntryId.parse(last) > EntryId.parse(after))


async def store_orphans(client: Redis, settings: Settings, *, within: float = SEARCH_SECONDS) -> None:
    """Add feeds to the list of known feeds that have a stream under the prefix and are not listed.

    Older versions did not list their feeds. A user who may not SCAN finds none, which is no error.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    prefix = settings.redis.prefix
    key = remembered_key(prefix)
    noted = {*settings.feed_ids, *await known_feeds(client, key)}
    pattern = "".join(f"[{letter}]" if letter in "*?[" else letter for letter in prefix) + ":{*/*}:events"
    with suppress(TimeoutError, StoreRefused):
        async with asyncio.timeout(within):
            for one in await servers(client):
                with translated(one):
                    async for name in one.scan_iter(match=pattern, count=1000):
                        text = name.decode("utf-8", "replace")
                        feed = text.removeprefix(f"{prefix}:{{").removesuffix("}:events")
                        if text == FeedKeys.of(prefix, feed).events and feed not in noted:
                            await store_unread(client, key, feed)


class ForgottenFeed(msgspec.Struct, frozen=True):
    """The data deleted with a feed; see :class:`OrphanedFeed`."""

    feed: str
    stream_length: int
    undelivered: int


async def forgettable(client: Redis, settings: Settings, feed: str, *, now: datetime) -> OrphanedFeed:
    """The data that would be deleted with a feed. The name may lack the source if it is unique.

    Raises:
        ConfigurationError: the own configuration has the feed, or the store does not.
        PollerError: a live process has the feed configured, or may have.
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    prefix = settings.redis.prefix
    await store_orphans(client, settings)
    known = await known_feeds(client, remembered_key(prefix))
    meant = [one for one in dict.fromkeys([*settings.feed_ids, *known]) if feed in {one, one.partition("/")[2]}]
    if len(meant) > 1:
        raise ConfigurationError(f'"{feed}" is the name of several feeds: {", ".join(meant)}')
    feed = meant[0] if meant else feed
    if feed in settings.feed_ids:
        raise ConfigurationError(f"{feed} is in the configuration: remove it there first, and restart the daemon")
    if feed not in known:
        others = sorted(set(known) - set(settings.feed_ids))
        there = f"; known and not configured: {', '.join(others)}" if others else ""
        raise ConfigurationError(f'the store has no feed "{feed}"{did_you_mean(feed, others)}{there}')
    _refuse_claimed(feed, await members_seen(client, MemberKeys.of(prefix)))
    return await orphaned_feed(client, prefix, feed, await registry_of(settings, client).all(), now=now)


async def forget(
    client: Redis,
    settings: Settings,
    feed: str,
    *,
    clock: Clock,
) -> ForgottenFeed:
    """Delete all data of a feed, including undelivered events.

    Raises:
        ConfigurationError: see :func:`forgettable`.
        PollerError: the same, or a process has the feed's lease.
        StoreError: see :func:`~poller.redis.client.translated`. The deletion may be repeated.
    """
    prefix = settings.redis.prefix
    lost = await forgettable(client, settings, feed, now=clock.now())
    keys = FeedKeys.of(prefix, feed)
    token = nonce_of(member_name(clock), clock)
    lease = Lease(client, LeaseScripts(client), keys.lease, token=token, ttl=LEASE, clock=clock)
    await _acquire(lease, feed, client, clock)
    try:
        members = MemberKeys.of(prefix)
        _refuse_claimed(feed, await members_seen(client, members))
        with translated(client):
            await client.hdel(remembered_key(prefix), feed)
        await Members(client, members, name="", ttl=LEASE, clock=StoreClock(process=clock)).read(
            MemberList(), tell=True
        )
        kept = await registry_of(settings, client).all()
        names = {*kept.registered, *(one.id for one in settings.subscriptions)}
        with translated(client):
            there = await client.exists(keys.events)
        groups = await consumer_groups(client, keys.events) if there else {}
        names |= {name.removeprefix(_OURS) for name in groups if name.startswith(_OURS)}
        pairs = [ConsumerKeys.of(prefix, feed, name) for name in sorted(names)]
        await until_let_go(client, [pair.lease for pair in pairs], clock)
        others = [GroupKeys.of(prefix, feed, name) for name in groups if not name.startswith(_OURS)]
        if not await forget_feed(client, keys, [*pairs, *others], nonce=lease.token):
            raise PollerError(  # noqa: TRY301 -- what follows lets go of the lease in any case
                f"another process has taken the lease of {feed}; nothing was deleted: try again"
            )
        if names:
            with translated(client):
                await client.hdel(
                    SubscriptionKeys.of(prefix).health, *(health_field(name, feed) for name in sorted(names))
                )
    except BaseException:  # without its note, the events that are still there would be forgotten
        with suppress(StoreError):
            await asyncio.shield(store_unread(client, remembered_key(prefix), feed))
        await lease.release()
        raise
    return ForgottenFeed(feed, lost.stream_length, lost.undelivered)


async def _acquire(lease: Lease, feed: str, client: Redis, clock: Clock) -> None:
    for _ in range(round(LEASE_PATIENCE / _PAUSE)):
        if await lease.acquire() is None:
            return
        await clock.sleep(_PAUSE)
    raise PollerError(
        f"a process has the lease of {feed}{await in_whose_hands(client, lease.key)}: a round may be under way; "
        "nothing was deleted, try again when that has ended"
    )


def _refuse_claimed(feed: str, seen: MemberList) -> None:
    having = [name for name, one in seen.configurations.items() if feed in (one.feeds or ())]
    if having:
        raise PollerError(
            f"{', '.join(having)} has {feed} in its configuration: stop it, or start it without the feed, and try again"
        )
    if claimed(seen) is None:
        silent = [name for name, one in seen.configurations.items() if one.feeds is None]
        raise PollerError(f"{', '.join(silent)} runs another version and does not list its feeds: stop it first")


# The configurations of all processes of a store, compared with each other and with the known feeds. A process that does
# not list its feeds may have any feed, so while one is live, no feed is orphaned. Digests are compared, because a
# sink's address may be a secret.

HERE: Final = "this configuration"


class ConfigurationDifference(msgspec.Struct, frozen=True):
    """A setting that must be equal in all processes, and is not.

    Attributes:
        what: the setting in words, such as ``base_url of source acme``.
        processes: one tuple of processes for each value.
    """

    what: str
    processes: tuple[tuple[str, ...], ...]

    @property
    def text(self) -> str:
        """The difference as a sentence that names both sides."""
        sides = " and ".join(", ".join(side) for side in self.processes)
        return f"{self.what} differs between {sides}: give all processes of a store the same configuration"


def stated(settings: Settings) -> MemberConfiguration:
    """The digests that a process with this configuration publishes."""
    return MemberConfiguration(
        settings.feed_ids,
        {source.name: _digest(source.base_url) for source in settings.sources},
        {one.id: _digest(str(one.sink)) for one in settings.subscriptions},
        {
            one.id: _digest("all" if one.feeds is None else " ".join(sorted(one.feeds)))
            for one in settings.subscriptions
        },
        snapshots=FORM,
    )


def claimed(seen: MemberList, own: Iterable[str] = (), *, role: str | None = None) -> frozenset[str] | None:
    """The feeds of all live processes with this ``role``, and of ``own``; None: unknown."""
    listed = seen.listed(name for name, roles in seen.roles.items() if roles and (role is None or role in roles))
    return None if listed is None else listed.union(own)


def orphaned(known: Iterable[str], seen: MemberList, own: Iterable[str] = ()) -> tuple[str, ...]:
    """The known feeds that no live process has, and that are not in ``own``."""
    having = claimed(seen, own)
    return () if having is None else tuple(sorted(set(known) - having))


def differences(said: Mapping[str, MemberConfiguration]) -> list[ConfigurationDifference]:
    """The settings in which these processes differ."""
    values: defaultdict[str, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for member, one in sorted(said.items()):
        for name, digest in one.sources.items():
            values[f"base_url of source {name}"][digest].append(member)
        for name, digest in (one.sinks or {}).items():
            values[f"sink of subscription {name}"][digest].append(member)
        for name, digest in one.wanted.items():
            values[f"feeds of subscription {name}"][digest].append(member)
    return [
        ConfigurationDifference(what, tuple(tuple(members) for members in sides.values()))
        for what, sides in sorted(values.items())
        if len(sides) > 1
    ]


def _digest(value: str) -> str:
    return blake2b(value.encode(), digest_size=8).hexdigest()


# At the start: whether the store knows the configured feeds at all.


async def report_empty_store(client: Redis, settings: Settings) -> None:
    """Log that the store has no state of any configured feed, if so.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    if await _has_state(client, settings):
        return
    prefix = settings.redis.prefix
    try:
        others = sorted(await prefixes_of(client, settings.feed_ids) - {prefix})
    except StoreRefused:  # the user may not SCAN
        others = []
    if others:
        _store_log.warning(
            "no state of any feed under this prefix, but under others",
            prefix=prefix,
            others=others,
            advice=f"check redis.prefix: with {prefix!r}, all feeds are read for the first time",
        )
    else:
        _store_log.info("first start: the store has no state of any feed", prefix=prefix)


async def prefixes_of(
    client: Redis, feeds: Collection[str], *, within: float = SEARCH_SECONDS, at_once: int = 1000
) -> set[str]:
    """The prefixes under which the store holds one of these feeds, as far as found within this many seconds.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    found: set[str] = set()
    with suppress(TimeoutError):
        async with asyncio.timeout(within):
            for one in await servers(client):
                with translated(one):
                    async for key in one.scan_iter(match=_EVERY_STATE, count=at_once):
                        prefix, _, rest = key.decode("utf-8", "replace").rpartition(":{")
                        if rest.rpartition("}")[0] in feeds:
                            found.add(prefix)
    return found


async def _has_state(client: Redis, settings: Settings) -> bool:
    """Whether the store has, or had, state of any of the feeds."""
    with translated(client):
        if await client.exists(remembered_key(settings.redis.prefix)):
            return True
    states = [FeedKeys.of(settings.redis.prefix, feed).state for feed in settings.feed_ids]
    for some in (states[at : at + _STATES_AT_ONCE] for at in range(0, len(states), _STATES_AT_ONCE)):
        with translated(client):
            asking = client.pipeline(transaction=False)
            for state in some:
                asking.exists(state)
            if any(await asking.execute()):
                return True
    return False
