"""Status of each feed: its state, last round, streams and lease owner. Reads only."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final, Literal, NamedTuple

import msgspec
from redis.asyncio import Redis

from poller.changes.full_readings import confirmation_of
from poller.changes.plan import RoundCounts
from poller.clock import moment_of, rfc3339
from poller.config.http import host_only
from poller.config.settings import Settings
from poller.control.subscriptions import filed, registry_of
from poller.delivery.endpoint_health import Health, health_of, of_subscription
from poller.delivery.handshake import Granted, HandshakeState, stored_state, ungranted
from poller.errors import StoreError, StoreRefused, StoreUnavailable
from poller.redis.health import Durability, ServerCheck, check_store, weighed
from poller.source.feed import REFUSALS, Progress, decode_progress
from poller.source.paging import capabilities_of
from poller.store.consumer_state import GracePeriod, grace_periods
from poller.store.feed_state import FeedState
from poller.store.retention import RetentionRule, StreamExtent, held_by
from poller.store.session import OpenStore
from poller.store.stats import Backlog, FeedStats, Pair, backlogs, feed_stats
from poller.store.subscriptions import WHOLE, Origin, Pauser, SubscriptionOutline, Subscriptions, outline_of
from poller.text import ago, short_number, size

FeedCondition = Literal["never read", "reading", "ok", "failing", "held", "paused"]


class FeedStatus(msgspec.Struct, frozen=True):
    """One line of ``poller status --json``, key for key.

    Attributes:
        feed: ``SOURCE/NAME``.
        state: ``never read``; ``reading``: its first round has not ended yet; ``ok`` or ``failing``: as the last round
            ended; ``held``: something waits for ``poller release``; ``paused``: by an operator, whatever else is true.
        mode: the mode of the last round; None before the first.
        error: why the last round failed; None: it did not.
        good_at: when the last good round ended, RFC 3339.
        good_age_seconds: the age of ``good_at``.
        round: the counters of the last round; None before the first.
        records: the number of known records that are not removed.
        events: the number of published events.
        stream_length: the number of events that the stream still holds.
        stream_bytes: the memory that the stream takes, approximately; None: not read.
        stream_oldest: when the stream's oldest event was published, RFC 3339; None: there is none, or it was not read.
        held_by: the consumer group that needs events older than ``retention.age``; None: there is none.
        quarantined: the number of unusable records that are kept.
        unidentified: the number of records of the last full reading without a readable id; if any, nothing was removed.
        delta_token: whether the next round is a delta.
        paging: how the end of its listings was detected; None before one was read.
        delta_token_on: the pages of a listing on which a delta token was found; None before one was read.
        refused: the parameters that the API refused and that are not sent any more, in words.
        listings: the number of listings, of a feed with one for each qualification; else 0.
        oldest_seconds: the age of the oldest reading of a listing; None before all were read.
        lost: what the store has lost of the feed most recently, in words; None: nothing.
        lost_at: when the loss was noticed, RFC 3339.
        lost_age_seconds: the age of ``lost_at``.
        lease: whether a process polls the feed now.
        lease_seconds: how long the lease lasts unless it is renewed; None: there is none.
        owner: the process that has the lease; None: there is none, or its name is unknown.
        next_at: when the next round is due, RFC 3339, as last stored by the process that polls the feed; None: the feed
            is paused, or no process polls it.
        next_seconds: the time until ``next_at``; negative: the round is running or late.
        paused_by: who has paused the feed; None: it is not paused.
        paused_reason: why it is paused, in words; may be empty.
        paused_at: since when it is paused, RFC 3339.
        paused_age_seconds: the age of ``paused_at``.
        backwards: the number of versions, ever, that were older than the known one by their lastModifiedAt.
        held_versions: the number of these that are held back now, with ``versions = "newest"``.
        held_reason: why the feed is held, in words, with the remedy; None: it is not. Good rounds do not clear it.
        held_at: since when it is held, RFC 3339; None: it is not, or this is unknown.
        held_age_seconds: the age of ``held_at``.
        confirming: whether the next rounds read it in full again, because records may have slipped between pages while
            it was read, or could not be distinguished.
        confirmations: the number of such readings so far, or until they were given up.
        late: the number of records that only these readings have found.
        progress: how far the running round has come; None: none runs, or it has just begun.
    """

    feed: str
    state: FeedCondition
    mode: str | None
    error: str | None
    good_at: str | None
    good_age_seconds: float | None
    round: RoundCounts | None
    records: int
    events: int
    stream_length: int
    quarantined: int
    delta_token: bool
    paging: str | None
    delta_token_on: str | None
    refused: tuple[str, ...]
    listings: int
    oldest_seconds: float | None
    lost: str | None
    lost_at: str | None
    lost_age_seconds: float | None
    lease: Literal["held", "free"]
    lease_seconds: float | None
    owner: str | None = None
    stream_bytes: int | None = None
    stream_oldest: str | None = None
    held_by: str | None = None
    next_at: str | None = None
    next_seconds: float | None = None
    paused_by: str | None = None
    paused_reason: str | None = None
    paused_at: str | None = None
    paused_age_seconds: float | None = None
    unidentified: int = 0
    backwards: int = 0
    held_versions: int = 0
    held_reason: str | None = None
    held_at: str | None = None
    held_age_seconds: float | None = None
    confirming: bool = False
    confirmations: int = 0
    late: int = 0
    progress: Progress | None = None

    @property
    def next_text(self) -> str:
        """The time until the next round, in words."""
        if self.next_seconds is None:
            return "-"
        return ago(self.next_seconds) if self.next_seconds > 0 else "now"

    @property
    def round_text(self) -> str:
        """The counters of the last round, in words."""
        if self.round is None:
            return "-"
        counts = self.round
        return f"{counts.records}: +{counts.created} ~{counts.modified} -{counts.removed}"


class FeedValue(NamedTuple):
    """A value of a feed's status, as people read it.

    Attributes:
        name: of its line of the details, and of its column of the page.
        detail: its text in ``poller status FEED``; None: it has no line there, or none for this feed.
        page: its text on the page; None: it has no column there.
        right: whether that column holds numbers.
    """

    name: str
    detail: Callable[[FeedStatus], str | None] | None = None
    page: Callable[[FeedStatus], str] | None = None
    right: bool = False


def _last_round(one: FeedStatus) -> str:
    return f"{one.mode or 'none'}; {one.round_text}, {one.round.seconds} s" if one.round else "none"


def _last_good(one: FeedStatus) -> str:
    return "-" if one.good_at is None else f"{one.good_at}, {ago(one.good_age_seconds or 0)} ago"


def _next_round(one: FeedStatus) -> str:
    text = one.next_text if (one.next_seconds or 0) <= 0 else f"in {one.next_text}"
    return "-" if one.next_at is None else f"{one.next_at}, {text}"


def _events(one: FeedStatus) -> str:
    stored = "" if one.stream_bytes is None else f", {size(one.stream_bytes)}"
    return f"{one.events}, of which the stream holds {one.stream_length}{stored}"


def _backwards(one: FeedStatus) -> str | None:
    if not one.backwards:
        return None
    return f"{short_number(one.backwards)} versions were older than the known ones, by their lastModifiedAt"


FEED_VALUES: Final = (
    FeedValue("last round", _last_round),
    FeedValue(
        "last good",
        _last_good,
        page=lambda one: "never" if one.good_age_seconds is None else f"{ago(one.good_age_seconds)} ago",
    ),
    FeedValue("next round", _next_round),
    FeedValue("polled by", lambda one: one.owner or ("an unnamed process" if one.lease == "held" else "no process")),
    FeedValue("records", lambda one: str(one.records), page=lambda one: str(one.records), right=True),
    FeedValue("events", _events, page=lambda one: str(one.events), right=True),
    FeedValue("oldest event", lambda one: one.stream_oldest or "-"),
    FeedValue("quarantined", lambda one: str(one.quarantined)),
    FeedValue("going back", _backwards),
    FeedValue(
        "delta token",
        lambda one: f"{'yes' if one.delta_token else 'no'}; found on {one.delta_token_on or 'no page yet'}",
    ),
    FeedValue("listing", lambda one: f"ends with {one.paging}" if one.paging else "not read yet"),
    FeedValue("refused", lambda one: ", ".join(one.refused) or "nothing"),
    FeedValue(
        "listings",
        lambda one: f"{one.listings}, the oldest read {ago(one.oldest_seconds or 0)} ago" if one.listings else None,
    ),
)
"""The values in their order, after the feed, its state and its problems."""


async def feed_statuses(
    client: Redis, settings: Settings, *, now: datetime, feeds: Sequence[str] | None = None
) -> list[FeedStatus]:
    """The status of every feed, in the order of the configuration. One that cannot be read is failing.

    Args:
        client: of the store.
        settings: the configuration.
        now: UTC.
        feeds: these alone, in this order.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    prefix, names = settings.redis.prefix, settings.feed_ids if feeds is None else feeds
    oldest = RetentionRule(settings.retention.age, settings.retention.max_bytes).oldest(now)
    found = await feed_stats(client, prefix, names, lenient=True)
    statuses = []
    for name in names:
        if name not in found:
            statuses.append(await _unreadable(client, prefix, name, now=now))
            continue
        holder = None
        with suppress(StoreRefused):  # the key of a subscription, whose status names it
            holder = await held_by(client, prefix, name, found[name].stream, oldest=oldest)
        statuses.append(feed_status(found[name], now=now, held_by=holder))
    return statuses


async def _unreadable(client: Redis, prefix: str, feed: str, *, now: datetime) -> FeedStatus:
    """The status of a feed of which a key cannot be read."""
    try:
        found = await feed_stats(client, prefix, [feed])
    except StoreUnavailable:
        raise
    except (StoreError, ValueError) as error:
        nothing = FeedStats(feed, FeedState("", 0), None, 0, StreamExtent(0, 0, None), 0, 0, 0, None, None)
        return msgspec.structs.replace(feed_status(nothing, now=now), state="failing", error=str(error))
    return feed_status(found[feed], now=now)


def feed_status(stats: FeedStats, *, now: datetime, held_by: str | None = None) -> FeedStatus:
    """The status of one feed.

    Args:
        stats: what the store holds of it.
        now: UTC.
        held_by: see :class:`FeedStatus`.
    """
    state, last, pause = stats.state, stats.last_round, stats.pause
    leased = stats.lease_ms > 0
    next_at = state.next_at if leased and not pause else None
    capabilities = capabilities_of(state.learnt)
    confirmation = confirmation_of(state.confirmation)
    return FeedStatus(
        feed=stats.feed,
        state=_condition(stats),
        mode=last.mode if last else None,
        error=last.error if last else None,
        good_at=_utc_text(state.good_at),
        good_age_seconds=_age(state.good_at, now),
        round=last.counts if last else None,
        records=stats.records,
        events=state.sequence,
        stream_length=stats.stream.length,
        stream_bytes=stats.stream.size,
        stream_oldest=rfc3339(moment_of(stats.stream.first[0])) if stats.stream.first else None,
        held_by=held_by,
        quarantined=stats.quarantined,
        delta_token=state.delta_token is not None,
        paging=capabilities.paging,
        delta_token_on=capabilities.delta_token,
        refused=(*capabilities.refused, *(("sinceDeltaToken",) if state.refusals >= REFUSALS else ())),
        listings=stats.listings,
        oldest_seconds=_age(state.oldest, now),
        lost=state.lost,
        lost_at=_utc_text(state.lost_at),
        lost_age_seconds=_age(state.lost_at, now),
        lease="held" if leased else "free",
        lease_seconds=stats.lease_ms / 1000 if leased else None,
        owner=stats.owner,
        next_at=_utc_text(next_at),
        next_seconds=round((next_at - now).total_seconds(), 3) if next_at else None,
        paused_by=pause.by if pause else None,
        paused_reason=pause.reason if pause else None,
        paused_at=_utc_text(pause.at) if pause else None,
        paused_age_seconds=_age(pause.at, now) if pause else None,
        unidentified=state.unidentified,
        backwards=state.backwards,
        held_versions=state.held_versions,
        held_reason=state.held,
        held_at=_utc_text(state.held_at) if state.held else None,
        held_age_seconds=_age(state.held_at, now) if state.held else None,
        confirming=confirmation is not None and confirmation.due,
        confirmations=confirmation.readings if confirmation else 0,
        late=confirmation.late if confirmation else 0,
        progress=decode_progress(state.progress) if leased else None,
    )


def _condition(stats: FeedStats) -> FeedCondition:
    if stats.pause:
        return "paused"
    if stats.state.held:
        return "held"
    if stats.last_round:
        return "ok" if stats.last_round.ok else "failing"
    return "reading" if stats.lease_ms or stats.snapshots else "never read"


def _utc_text(moment: datetime | None) -> str | None:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z") if moment else None


def _age(moment: datetime | None, now: datetime) -> float | None:
    return round((now - moment).total_seconds(), 3) if moment else None


# Status of subscriptions, including those that no daemon has read yet. Of a sink only scheme and host are shown,
# because the rest may be a credential.

Doing = Literal["new", "active", "failing", "paused"]


class SubscriptionStatus(msgspec.Struct, frozen=True):
    """One line of ``poller subscriptions list --json``, and of ``poller status --json`` after the feeds; key for key.

    Attributes:
        subscription: its id.
        origin: ``file``: the configuration's; ``run``: added at run time.
        sink: the URL of the sink, without its path.
        state: ``new``: in the file, but no daemon has seen it yet; ``active``; ``failing``: no delivery has succeeded
            since, or its sink has not granted events; ``paused``.
        paused_by: ``operator``, ``sink``, ``failures`` or ``removed`` (from the file); None: it is not paused.
        reason: why it is paused, in words.
        since: since when it is paused or failing, RFC 3339.
        until: until when its sink has paused deliveries by ``Retry-After``, RFC 3339; None: it has not.
        handshake: whether its sink has granted events: ``granted``, ``refused``, ``revoked``, ``awaiting callback`` or
            ``unanswered``; None: the sink need not be asked, or was not yet.
        delivered: the number of successful attempts, as last stored by the process that delivers.
        failed: the number of failed attempts, likewise.
        lag_entries: the number of undelivered events at all of its feeds; None: known of no feed.
        lag_seconds: the age of the oldest undelivered event; None likewise.
        parked: the number of events that wait for their next attempt.
        dead_letters: the number of dead letters.
        lost: the number of events, ever, that were deleted before they were delivered, because a stream grew beyond
            ``retention.max_bytes``.
        error: how the last attempt failed, or why events are not granted and what to do; None: it is not failing.
        all_feeds: whether it gets all feeds that there are.
        feeds: the backlog at each of its feeds, and at those of ``unlisted``.
        unlisted: the feeds that its settings do not list any more, and at which events wait.
        backfill_records: the number of records that backfills are still to deliver, approximately.
    """

    subscription: str
    origin: Origin
    sink: str
    state: Doing
    paused_by: Pauser | None
    reason: str | None
    since: str | None
    until: str | None
    handshake: str | None
    delivered: int
    failed: int
    lag_entries: int | None
    lag_seconds: float | None
    parked: int
    dead_letters: int
    lost: int
    all_feeds: bool
    feeds: tuple[Backlog, ...]
    error: str | None = None
    unlisted: tuple[str, ...] = ()
    backfill_records: int = 0

    @property
    def backfill_text(self) -> str:
        """How far its backfills have come, in words; empty: none is under way."""
        under_way = [one.backfill for one in self.feeds if one.backfill is not None]
        if not under_way:
            return ""
        return f"{sum(one.done for one in under_way)} of {sum(one.total for one in under_way)} records"


def status_of_new(name: str, sink: str, *, all_feeds: bool, now: datetime) -> SubscriptionStatus:
    """The status of a subscription that was just added at run time, without a read of the store.

    Args:
        name: its id.
        sink: where its events go.
        all_feeds: whether it gets all feeds that there are.
        now: UTC.
    """
    outline = SubscriptionOutline(sink, None if all_feeds else ())
    status = _subscription_status(name, outline, Subscriptions(), (), now)
    return msgspec.structs.replace(status, origin="run", state="active")


async def subscription_statuses(
    client: Redis,
    settings: Settings,
    *,
    now: datetime,
    only: Collection[str] | None = None,
    kept: Subscriptions | None = None,
) -> list[SubscriptionStatus]:
    """The status of every subscription, by id. One that cannot be read at a feed is failing.

    Args:
        client: of the store.
        settings: the configuration.
        now: UTC.
        only: the ids of these alone.
        kept: the registry, where it was read just now.

    Raises:
        StoreError: see :func:`~poller.redis.client.translated`.
    """
    kept = kept or await registry_of(settings, client).all()
    found_in = {name: outline_of(text) for name, text in filed(settings)}
    found_in |= {name: one.outline for name, one in kept.registered.items()}
    outlines = {name: one for name, one in sorted(found_in.items()) if only is None or name in only}
    prefix = settings.redis.prefix
    waiting = await _waiting_unlisted(client, settings, kept)
    unlisted = {name: _unlisted(kept, name, one, settings, waiting) for name, one in outlines.items()}
    pairs = [
        (name, feed)
        for name, one in outlines.items()
        for feed in (*(one.feeds or settings.feed_ids), *sorted(unlisted[name]))
    ]
    begins = {
        (name, feed): kept.registered[name].start(feed)
        for name, feed in pairs
        if name in kept.registered and (feed not in unlisted[name] or (name, feed) in waiting)
    }
    found = await backlogs(client, prefix, pairs, now=now, begins=begins, lenient=True)
    own: defaultdict[str, list[Backlog]] = defaultdict(list)
    unreadable: dict[str, str] = {}
    for name, feed in pairs:
        backlog = found.get((name, feed)) or await _backlog_or_error(client, prefix, (name, feed), begins, now=now)
        if isinstance(backlog, str):
            unreadable.setdefault(name, f"{feed}: {backlog}")
        elif feed not in unlisted[name] or backlog.entries or backlog.parked:
            own[name].append(backlog)
    statuses = [
        _subscription_status(name, one, kept, tuple(own[name]), now, unlisted=unlisted[name])
        for name, one in outlines.items()
    ]
    return [_failing_with(one, unreadable.get(one.subscription)) for one in statuses]


async def _backlog_or_error(
    client: Redis, prefix: str, pair: Pair, begins: Mapping[Pair, str], *, now: datetime
) -> Backlog | str:
    try:
        return (await backlogs(client, prefix, [pair], now=now, begins=begins))[pair]
    except StoreUnavailable:
        raise
    except (StoreError, ValueError) as error:
        return str(error)


def _failing_with(one: SubscriptionStatus, error: str | None) -> SubscriptionStatus:
    """The status with an error of the store, unless there is another one."""
    if error is None or one.error is not None:
        return one
    return msgspec.structs.replace(one, state="paused" if one.state == "paused" else "failing", error=error)


def _unlisted(
    kept: Subscriptions, name: str, outline: SubscriptionOutline, settings: Settings, waiting: Collection[Pair]
) -> frozenset[str]:
    """The feeds of the configuration that a subscription does not list now, and at which events may wait."""
    there = frozenset(settings.feed_ids if outline.feeds is not None else ()).difference(outline.feeds or ())
    delivered = kept.health.get(name, {})
    return frozenset(feed for feed in there if feed in delivered or (name, feed) in waiting)


async def _waiting_unlisted(client: Redis, settings: Settings, kept: Subscriptions) -> frozenset[Pair]:
    """The feeds of the configuration that a subscription lists no more, and at which events waited at the last look.

    They count also where its delivery has not begun.
    """
    left = {
        (name, feed): one.unlisted_at(feed)
        for name, one in kept.registered.items()
        for feed in settings.feed_ids
        if one.has_left(feed)
    }
    periods = await grace_periods(client, settings.redis.prefix, (feed for _, feed in left))
    return frozenset(
        (name, feed)
        for (name, feed), since in left.items()
        if periods[feed].get(name) == GracePeriod(since, is_ended=False)
    )


def _subscription_status(
    name: str,
    outline: SubscriptionOutline,
    kept: Subscriptions,
    feeds: tuple[Backlog, ...],
    now: datetime,
    *,
    unlisted: Collection[str] = (),
) -> SubscriptionStatus:
    registered, pause, until = kept.registered.get(name), kept.paused.get(name), kept.until.get(name)
    health = _health(kept, name, unlisted)
    permission = stored_state(kept.handshakes.get(name)) if outline.handshake else None
    refusal, unusable = ungranted(permission), kept.unusable.get(name)
    failing_since = health.failing_since if refusal is None else _since(permission)
    since = pause.at if pause else failing_since
    failing = unusable is not None or refusal is not None or health.failing_since is not None
    return SubscriptionStatus(
        subscription=name,
        origin=registered.origin if registered else "file",
        sink=host_only(outline.sink),
        state="new" if not registered else "paused" if pause else "failing" if failing else "active",
        paused_by=pause.by if pause else None,
        reason=pause.reason if pause else None,
        since=_utc_text(since),
        until=_utc_text(until) if until and until > now else None,
        handshake=_permission_text(permission),
        delivered=health.delivered,
        failed=health.failed,
        lag_entries=_sum([one.entries for one in feeds]),
        lag_seconds=max((one.seconds for one in feeds if one.seconds is not None), default=None),
        parked=sum(one.parked for one in feeds),
        dead_letters=sum(one.dead_letters for one in feeds),
        lost=sum(one.lost for one in feeds),
        all_feeds=outline.feeds is None,
        feeds=feeds,
        error=unusable or refusal or (health.error if health.failing_since else None),
        unlisted=tuple(sorted(one.feed for one in feeds if one.feed in unlisted)),
        backfill_records=sum(one.backfill.left for one in feeds if one.backfill is not None),
    )


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _health(kept: Subscriptions, name: str, unlisted: Collection[str]) -> Health:
    """The health of a subscription over all of its feeds; of feeds that it does not list any more, only the counts."""
    feeds = dict(kept.health.get(name, {}))
    subscription = health_of(feeds.pop(WHOLE, None))
    return of_subscription(
        subscription,
        (
            Health(delivered=health.delivered, failed=health.failed) if feed in unlisted else health
            for feed, health in ((feed, health_of(text)) for feed, text in feeds.items())
        ),
    )


def is_ungranted(kept: Subscriptions, name: str) -> bool | None:
    """Whether its sink has not granted events; None: it need not be asked."""
    asked = kept.registered[name].outline.handshake
    return ungranted(stored_state(kept.handshakes.get(name))) is not None if asked else None


def _permission_text(permission: HandshakeState | None) -> str | None:
    return None if permission is None else str(msgspec.to_builtins(permission)["state"])


def _since(permission: HandshakeState | None) -> datetime | None:
    return None if permission is None or isinstance(permission, Granted) else permission.since


# Status of the store.


class StoreStatus(msgspec.Struct, frozen=True):
    """What ``poller status --json`` has under ``store``, key for key.

    Attributes:
        url: where it is, without anything secret.
        ok: whether nothing is an error.
        version: of the server, in words; None: unknown.
        checks: all checks, the good ones included.
    """

    url: str
    ok: bool
    version: str | None
    checks: tuple[ServerCheck, ...]


async def store_status(store: OpenStore, durability: Durability) -> StoreStatus:
    """Look at the store.

    Args:
        store: open.
        durability: decides how grave a finding is.

    Raises:
        StoreError: it does not answer.
    """
    found = [weighed(one, durability) for one in await check_store(store.client, process=store.clock.process)]
    return StoreStatus(
        url=store.shown,
        ok=all(one.severity != "error" for one in found),
        version=next((one.text for one in found if one.name == "version" and one.severity == "ok"), None),
        checks=tuple(found),
    )


# Live processes, with the roles and leases of each.


class MemberStatus(msgspec.Struct, frozen=True):
    """One of the ``members`` of the last line of ``poller status --json``, key for key.

    Attributes:
        member: the process: machine, process id, and a random part.
        roles: ``poll``, ``deliver`` or both; none while it is leaving.
        feeds: the number of feeds that it polls.
        deliveries: the number of feeds of subscriptions that it delivers.
    """

    member: str
    roles: tuple[str, ...]
    feeds: int
    deliveries: int


def member_statuses(
    there: Mapping[str, frozenset[str]], feeds: Iterable[FeedStatus], subscriptions: Iterable[SubscriptionStatus]
) -> list[MemberStatus]:
    """All live processes, and those that still have leases.

    Args:
        there: the roles of each live process.
        feeds: as they were read just now.
        subscriptions: likewise.
    """
    polling = Counter(one.owner for one in feeds if one.owner)
    delivering = Counter(feed.owner for one in subscriptions for feed in one.feeds if feed.owner)
    return [
        MemberStatus(name, tuple(sorted(there.get(name, ()), reverse=True)), polling[name], delivering[name])
        for name in sorted({*there, *polling, *delivering})
    ]
