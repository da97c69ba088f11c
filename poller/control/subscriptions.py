"""Changes to subscriptions while the program runs: add, change, remove, pause, resume.

**Invariants**

* Subscriptions in a configuration file cannot be changed or removed here, and their ids cannot be reused.
* A subscription that was removed from all files stays paused until a file lists it again.
* A subscription that a running process has in its file is not removed: that process would add it again, as a new one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from redis.asyncio import Redis

from poller.changes.events import Cause
from poller.clock import Clock, milliseconds_of, moment_of
from poller.config.settings import Settings
from poller.config.subscriptions import SubscriptionSettings
from poller.config.validation import decode_subscription, encode_subscription
from poller.delivery.cloudevent import envelope_of
from poller.delivery.delivery_codec import Delivery
from poller.delivery.endpoint_health import Health, resumed
from poller.delivery.handshake import Granted, stored_state, ungranted
from poller.delivery.operational_events import OperationalEvent, OperationType, announce, operational_event
from poller.delivery.projection import segments_of
from poller.delivery.sinks.base import Outcome, Preview, SinkEvent
from poller.errors import (
    PollerError,
    StoreError,
    StoreRefused,
    SubscriptionFiled,
    SubscriptionTaken,
    SubscriptionUnknown,
)
from poller.redis.errors import translated
from poller.store.consumer_state import (
    GracePeriods,
    Remainder,
    end_unlisted,
    forget,
    forget_grace_periods,
    forget_unbegun,
    grace_periods,
    has_ended,
)
from poller.store.keys import ConsumerKeys, FeedKeys, MemberKeys, SubscriptionKeys, group_of, remembered_key
from poller.store.members import members_seen
from poller.store.recovery import known_feeds
from poller.store.registry import Registry
from poller.store.stream import consumer_groups
from poller.store.subscriptions import Following, Paused, Registered, Subscriptions, require_paused, require_registered

LEFT_ALONE: Final = 5.0  # seconds that deliveries of a removed subscription have to end by themselves
_PAUSE: Final = 0.1
_BY: Final = {"by": "operator"}
_BEING_REMOVED: Final = "it is being removed; if that was interrupted, remove it again"


def registry_of(settings: Settings, client: Redis) -> Registry:
    """The registry of subscriptions in this configuration's store."""
    return Registry(client, SubscriptionKeys.of(settings.redis.prefix))


def filed(settings: Settings) -> list[tuple[str, bytes]]:
    """The subscriptions of the file as :meth:`~poller.store.registry.Registry.sync` takes them."""
    return [(one.id, encode_subscription(one)) for one in settings.subscriptions]


async def add(
    registry: Registry,
    settings: Settings,
    wanted: SubscriptionSettings,
    *,
    secrets: Sequence[str],
    now: datetime,
    credential: bytes | None = None,
) -> None:
    """Add a subscription.

    Args:
        registry: of the store.
        settings: the configuration.
        wanted: the subscription's settings.
        secrets: generated for the subscription.
        now: UTC.
        credential: of the request, for the sink, in its stored form.

    Raises:
        SubscriptionTaken: a subscription with this id exists, in the file or in the registry.
        SecretUnusable: a secret file holds no secret.
        CredentialUnusable: a secret file cannot be read.
    """
    if _in_file(settings, wanted.id):
        raise SubscriptionTaken(f'subscription "{wanted.id}" is in the configuration file')
    from poller.control.factories import signing_secrets  # noqa: PLC0415 -- slow to import, and status needs none of it

    signing_secrets(wanted.secret_files)
    ends = await _ends(registry, settings, wanted)
    await registry.add(wanted.id, encode_subscription(wanted), secrets, now, credential=credential, ends=ends)


async def change(
    registry: Registry,
    settings: Settings,
    wanted: SubscriptionSettings,
    following: Following = lambda _, credential: credential,
) -> None:
    """Replace the settings of a subscription that was added at run time. It keeps its position and its secrets.

    Args:
        registry: of the store.
        settings: the configuration.
        wanted: the new settings.
        following: returns the new stored credential for the sink.

    Raises:
        SubscriptionUnknown: no subscription has this id.
        SubscriptionFiled: the subscription is in the file.
    """
    refuse_change(await registry.all(), settings, wanted.id)
    ends = await _ends(registry, settings, wanted)
    await registry.change(wanted.id, encode_subscription(wanted), following, ends=ends)


async def _ends(registry: Registry, settings: Settings, *wanted: SubscriptionSettings) -> dict[str, str]:
    named = (feed for one in wanted for feed in one.feeds or ())
    return await registry.last_entries(settings.redis.prefix, (*settings.feed_ids, *named))


async def filed_ends(registry: Registry, settings: Settings) -> dict[str, str]:
    """The last entries of the feeds of the file's subscriptions.

    Raises:
        StoreError: see :func:`~poller.store.recovery.last_entries`.
    """
    return await _ends(registry, settings, *settings.subscriptions)


async def pause(client: Redis, settings: Settings, subscription: str, *, reason: str, now: datetime) -> Paused | None:
    """Pause a subscription for an operator, and announce it. Returns the pause before; None: it was active.

    Raises:
        SubscriptionUnknown: no subscription has this id, or no daemon has seen it yet.
    """
    registry = registry_of(settings, client)
    registered(await registry.all(), settings, subscription)
    before = await registry.pause(subscription, Paused("operator", reason, now))
    if before is None or before.by == "removed":  # any other pause stays as it is
        await _announce(
            client, settings, OperationalEvent(OperationType.SUBSCRIPTION_PAUSED, subscription, now, reason, _BY)
        )
    return before


async def resume(client: Redis, settings: Settings, subscription: str, *, now: datetime) -> Paused | None:
    """Resume a subscription with its failures reset, and announce it. Returns the pause before; None: it was active.

    Raises:
        SubscriptionUnknown: no subscription has this id, or no daemon has seen it yet.
        SubscriptionFiled: it was removed from the file, or from the files of all running processes; or only the file
            of another process has it.
    """
    registry = registry_of(settings, client)
    kept = await registry.all()
    one, pause_before = registered(kept, settings, subscription), kept.paused.get(subscription)
    if one.origin == "file" and not _in_file(settings, subscription):
        if having := await _listing(client, settings, subscription):
            raise SubscriptionFiled(
                f'subscription "{subscription}" is in the configuration file of {having}, not in this one: resume it '
                "with that file"
            )
        raise SubscriptionFiled(
            f'subscription "{subscription}" is not in the configuration file any more: put it back, or delete it '
            f"with `poller subscriptions remove {subscription}`"
        )
    if pause_before is not None and pause_before.by == "removed":
        listed = (await members_seen(client, MemberKeys.of(settings.redis.prefix))).subscriptions
        if listed.is_complete and subscription not in listed.ids:  # it would be paused again
            raise SubscriptionFiled(
                f'no running process has subscription "{subscription}" in its configuration file: start them again '
                "with the file that has it"
            )
    before = await registry.resume(subscription, health_resumed)
    if before is not None:
        reason = f"it had been paused: {before.reason}"
        await _announce(
            client,
            settings,
            OperationalEvent(OperationType.SUBSCRIPTION_RESUMED, subscription, now, reason, _BY),
        )
    return before


async def remove(
    client: Redis,
    settings: Settings,
    subscription: str,
    *,
    clock: Clock,
) -> None:
    """Delete a subscription with its undelivered events.

    It is paused first. The process that delivers it notices that and has a moment to end its deliveries; then the state
    at its feeds is deleted, and at last the subscription itself. If this is interrupted, the subscription is still
    listed and can be removed again: a new one of this id never continues where this one stood. One that was added
    under this id meanwhile, because another command has removed this one, stays.

    Raises:
        SubscriptionUnknown: no subscription has this id.
        SubscriptionFiled: the subscription is in the file, or in that of a running process.
        SubscriptionResumed: it was resumed meanwhile.
    """
    registry = registry_of(settings, client)
    kept = await registry.all()
    await refuse_filed(client, kept, settings, subscription)
    since = kept.registered[subscription].since
    await registry.pause(subscription, Paused("operator", _BEING_REMOVED, clock.now()), since)
    prefix = settings.redis.prefix
    everywhere = await known_feeds(client, remembered_key(prefix))  # also feeds that were renamed or removed
    feeds = dict.fromkeys((*feeds_of(kept, settings, subscription), *everywhere))
    pairs = {feed: ConsumerKeys.of(prefix, feed, subscription) for feed in feeds}
    await until_let_go(client, [pair.lease for pair in pairs.values()], clock)
    require_paused(await registry.all(), subscription, since)  # else what is at the feeds is another's, or in use again
    for feed, pair in pairs.items():
        await forget(client, FeedKeys.of(settings.redis.prefix, feed), pair, subscription)
    await registry.remove(subscription, since)
    with suppress(StoreError):  # it is removed in any case
        for feed, pair in pairs.items():  # a stream that was trimmed meanwhile may have left dead letters
            await forget_unbegun(client, FeedKeys.of(settings.redis.prefix, feed), pair, subscription)


def registered(kept: Subscriptions, settings: Settings, subscription: str) -> Registered:
    """The registered subscription with this id.

    Raises:
        SubscriptionUnknown: no subscription has this id, or no daemon has seen it yet.
    """
    if subscription not in kept.registered and _in_file(settings, subscription):
        raise SubscriptionUnknown(
            f'subscription "{subscription}" is in the configuration file, but no daemon has been started with it yet'
        )
    return require_registered(kept, subscription)


def refuse_change(kept: Subscriptions, settings: Settings, subscription: str) -> None:
    """Raise an error if only the file can change the subscription.

    Raises:
        SubscriptionFiled: the subscription is in the file.
    """
    one = kept.registered.get(subscription)
    if _in_file(settings, subscription) or (one is not None and one.origin == "file"):
        raise SubscriptionFiled(
            f'subscription "{subscription}" is in the configuration file: change it there and start the daemon again'
        )


async def refuse_filed(client: Redis, kept: Subscriptions, settings: Settings, subscription: str) -> None:
    """Raise an error unless the subscription may be removed.

    Raises:
        SubscriptionUnknown: no subscription has this id.
        SubscriptionFiled: the subscription is in the file, or in that of a running process.
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    filed_now = _in_file(settings, subscription)
    if filed_now and (subscription not in kept.registered or kept.registered[subscription].origin == "file"):
        raise SubscriptionFiled(
            f'subscription "{subscription}" is in the configuration file: remove it there; then '
            f"`poller subscriptions remove {subscription}` deletes its data"
        )
    if require_registered(kept, subscription).origin != "file":
        return
    if having := await _listing(client, settings, subscription):
        raise SubscriptionFiled(
            f'subscription "{subscription}" is in the configuration file of {having}, which runs: remove it there, '
            f"start the daemon again, and then `poller subscriptions remove {subscription}` deletes its data"
        )


def settings_of(kept: Subscriptions, settings: Settings, subscription: str) -> SubscriptionSettings:
    """The settings of a subscription from the registry, else from the file.

    Raises:
        SubscriptionUnknown: no subscription has this id.
        ConfigurationError: its stored settings cannot be used.
    """
    if subscription not in kept.registered:
        for one in settings.subscriptions:
            if one.id == subscription:
                return one
    return decode_subscription(bytes(require_registered(kept, subscription).settings))


def feeds_of(kept: Subscriptions, settings: Settings, subscription: str) -> tuple[str, ...]:
    """The feeds at which a subscription may have state: all configured feeds, and those that it names."""
    return tuple(dict.fromkeys((*settings.feed_ids, *(kept.registered[subscription].outline.feeds or ()))))


class UnlistedFeed(msgspec.Struct, frozen=True):
    """A feed that a subscription lists no more, and that it had not left yet.

    Attributes:
        subscription: its id.
        feed: ``SOURCE/NAME``.
        left: what is left of the feed consumer.
        events: how many events wait or were dropped; the unread ones are counted up to 1000.
    """

    subscription: str
    feed: str
    left: Remainder
    events: int


async def end_unlisted_feeds(
    client: Redis,
    settings: Settings,
    kept: Subscriptions,
    *,
    now: datetime,
    counts: timedelta,
    others: Iterable[str] = (),
) -> list[UnlistedFeed]:
    """End the consumers of subscriptions at feeds that they list no more, so that they hold no stream.

    A consumer for which events wait that were published while the feed was listed stays for ``retention.age``, whether
    or not its delivery has begun. That time begins when a process first sees that the feed is not listed, and again
    when the feed was listed meanwhile. :func:`~poller.store.consumer_state.end_unlisted` says how it is counted. While
    no process looks, nothing counts.

    Args:
        client: of the store.
        settings: the configuration.
        kept: the registry.
        now: the store's clock, UTC.
        counts: how long ago this process looked last, by its monotonic clock; zero: it has not looked yet.
        others: feeds that are not configured here, ``SOURCE/NAME``.

    Raises:
        StoreUnavailable: the store is unavailable.
    """
    found = list[UnlistedFeed]()
    feeds = list(dict.fromkeys((*settings.feed_ids, *others)))
    periods = await grace_periods(client, settings.redis.prefix, feeds)
    for feed in feeds:
        keys = FeedKeys.of(settings.redis.prefix, feed)
        with suppress(StoreRefused):  # an unusable stream is reported by those who need it
            if again := [name for name in periods[feed] if not _is_unlisted(kept, name, feed)]:
                await forget_grace_periods(client, keys, again)
            for name in await _left_at(client, keys.events, feed, kept, periods[feed]):
                one, pair = kept.registered[name], ConsumerKeys.of(settings.redis.prefix, feed, name)
                left, events = await end_unlisted(
                    client,
                    keys,
                    pair,
                    name,
                    since=one.unlisted_at(feed),
                    start=one.start(feed) if one.has_left(feed) else "",
                    now=now,
                    counts=counts,
                    grace=settings.retention.age,
                )
                found.append(UnlistedFeed(name, feed, left, events))
    return [one for one in found if one.left != "none"]


def _is_unlisted(kept: Subscriptions, name: str, feed: str) -> bool:
    return name in kept.registered and not kept.registered[name].outline.wants(feed)


async def _left_at(
    client: Redis, events: str, feed: str, kept: Subscriptions, periods: GracePeriods
) -> Collection[str]:
    """The subscriptions that do not list a feed and have a group there, or have listed it and not left it yet."""
    unlisted = [name for name in kept.registered if _is_unlisted(kept, name, feed)]
    groups = await consumer_groups(client, events) if unlisted else {}
    return [name for name in unlisted if group_of(name) in groups or holds_unlisted(kept, name, feed, periods)]


def holds_unlisted(kept: Subscriptions, name: str, feed: str, periods: GracePeriods) -> bool:
    """Whether a registered subscription has listed a feed, does not list it now, and may have events waiting there."""
    one = kept.registered[name]
    return one.has_left(feed) and not has_ended(periods.get(name), one.unlisted_at(feed))


class ScheduledAttempts(msgspec.Struct, frozen=True):
    """The deliveries of a subscription that wait for their next attempt by the retry schedule.

    Attributes:
        count: their number, without the later events of their records.
        first: when the first of them is due, UTC.
    """

    count: int
    first: datetime


async def scheduled_attempts(
    client: Redis, settings: Settings, kept: Subscriptions, subscription: str, *, now: datetime
) -> ScheduledAttempts | None:
    """The attempts that wait longer than until ``now``; None: there are none.

    What waits for a pause of the sink is left out: it ends with the pause.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    with translated(client):
        asking = client.pipeline(transaction=False)
        for feed in feeds_of(kept, settings, subscription):
            asking.hgetall(ConsumerKeys.of(settings.redis.prefix, feed, subscription).parked)
        deliveries = [one for of_feed in await asking.execute() for one in of_feed.values()]
    due = [moment for moment in map(_due, deliveries) if moment > milliseconds_of(now)]
    return ScheduledAttempts(len(due), moment_of(min(due))) if due else None


def _due(delivery: bytes) -> int:
    """When a scheduled retry is due, in milliseconds; 0: it waits for something else, or cannot be read."""
    try:
        read = msgspec.json.decode(delivery, type=Delivery)
    except ValueError:  # also of bytes that are no UTF-8
        return 0
    return 0 if read.paused else read.due


def health_resumed(health: bytes) -> bytes:
    """The stored health with its failures reset; unreadable health stays."""
    try:
        return msgspec.json.encode(resumed(msgspec.json.decode(health, type=Health)))
    except ValueError:
        return health


async def _announce(client: Redis, settings: Settings, announcement: OperationalEvent) -> None:
    with suppress(StoreError):  # the command has taken effect without the event
        await announce(client, settings.redis.prefix, announcement)


async def until_let_go(client: Redis, leases: Sequence[str], clock: Clock) -> None:
    """Wait until none of these leases is held any more, at most :data:`LEFT_ALONE`."""
    for _ in range(round(LEFT_ALONE / _PAUSE)):
        with translated(client):
            if not any([await client.exists(lease) for lease in leases]):
                return
        await clock.sleep(_PAUSE)


async def _listing(client: Redis, settings: Settings, subscription: str) -> str:
    """The names of the live processes that say that their file lists the subscription; empty: none does.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    said = (await members_seen(client, MemberKeys.of(settings.redis.prefix))).configurations
    return ", ".join(sorted(name for name, one in said.items() if subscription in (one.sinks or ())))


def _in_file(settings: Settings, subscription: str) -> bool:
    return any(one.id == subscription for one in settings.subscriptions)


# A sample event, sent like the events of the subscription: mode, headers, secrets, credential. Nothing is stored. A
# sink that must grant events first and has not gets nothing.

TYPE: Final = "poller.subscription.test.v1"
_EVENT_ID_BYTES: Final = 16
_SAMPLE_TEXT: Final = "A test: no record has changed."
_SAMPLE_VALUE: Final = "a sample value"


class NotGranted(PollerError):
    """The sink must grant events before any is sent, and has not."""


class SampleResult(msgspec.Struct, frozen=True):
    """The request that was sent, without the credential, and its outcome."""

    sent: Preview
    outcome: Outcome


async def sample(
    settings: SubscriptionSettings,
    *,
    secrets: Sequence[str],
    handshake: bytes | None,
    environ: Mapping[str, str],
    clock: Clock,
    brought: bytes | None = None,
) -> SampleResult:
    """Send one sample event.

    Args:
        settings: the subscription's.
        secrets: those that no file holds.
        handshake: the stored permission of the sink.
        environ: may hold the credential.
        clock: the store's.
        brought: the stored credential of the request that added the subscription.

    Raises:
        NotGranted: the sink has not granted events.
        ConfigurationError: credential or secrets cannot be used.
        CredentialUnusable: a secret file cannot be read.
    """
    from poller.control.factories import projections_of, sink_of  # noqa: PLC0415 -- as above

    state = stored_state(handshake) if settings.handshake else None
    granted = state if isinstance(state, Granted) else None
    if settings.handshake and granted is None:
        why = ungranted(state) or "no daemon has asked it yet, as `poller run` does before the first delivery"
        raise NotGranted(
            f"{settings.id}: validate = true, and its sink has not granted events: {why}; nothing was sent"
        )
    event = sample_event(settings, event_id=clock.random.randbytes(_EVENT_ID_BYTES).hex(), now=clock.now())
    projection = projections_of(settings, {})
    sent = projection("").of((envelope_of(event), event)) if projection else (envelope_of(event), event)
    batch = [SinkEvent(*sent)] if sent else []  # one of a created record is always sent
    sink = sink_of(settings, environ, brought=brought, secrets=secrets, granted=granted, clock=clock)
    async with sink:
        return SampleResult(*await sink.try_out(batch))


def sample_event(settings: SubscriptionSettings, *, event_id: str, now: datetime) -> bytes:
    """The sample event, in the form of a stream entry.

    With ``fields`` or ``thin`` it has a record, with a value wherever a pointer of the settings leads, so that what is
    sent shows what they leave.
    """
    data: dict[str, object] = {"text": _SAMPLE_TEXT}
    if settings.fields is not None or settings.thin:
        data = {"record": _sample_record(settings), "revision": 1}
    return operational_event(
        type_=TYPE,
        subject=settings.id,
        event_id=event_id,
        at=now,
        data=data | {"cause": Cause.DELTA.value},
        extensions={"cause": Cause.DELTA.value},
    )


def _sample_record(settings: SubscriptionSettings) -> dict[str, Any]:
    record: dict[str, Any] = {"id": settings.id, "text": _SAMPLE_TEXT}
    fields = settings.fields
    for pointer in sorted((fields.pick or fields.drop or ()) if fields else (), key=len, reverse=True):
        *above, last = segments_of(pointer)
        table = record
        for segment in above:
            inner = table.setdefault(segment, {})
            table = inner if isinstance(inner, dict) else {}
        table.setdefault(last, _SAMPLE_VALUE)
    return record
