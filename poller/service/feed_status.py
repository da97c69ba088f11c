"""What is known of each feed: its state, its last round, its streams, who has its lease. Reads only."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec
from redis.asyncio import Redis

from poller.changes.confirmation import confirmation_of
from poller.changes.events import recorded_time
from poller.config.settings import Settings
from poller.source.feed import REFUSALS
from poller.source.learning import learnt_of
from poller.source.progress import Progress, progress_of
from poller.spans import ago
from poller.store.connection import translated
from poller.store.keys import FeedKeys
from poller.store.owners import owner_of
from poller.store.pauses import Pause, pause_of
from poller.store.registrations import moment_of
from poller.store.retention import Rule
from poller.store.standing import held_by, stream_of
from poller.store.state import FeedState, state_of

FeedCondition = Literal["never read", "reading", "ok", "failing", "held", "paused"]


class Counts(msgspec.Struct, frozen=True):
    """What the last round counted; see :class:`poller.source.result.RoundResult`."""

    pages: int = 0
    records: int = 0
    created: int = 0
    modified: int = 0
    removed: int = 0
    unchanged: int = 0
    quarantined: int = 0
    seconds: float = 0.0


class FeedStatus(msgspec.Struct, frozen=True):
    """One line of ``poller status --json``, key for key.

    Attributes:
        feed: ``SOURCE/NAME``.
        state: ``never read``; ``reading``, its first round has begun and not ended; ``ok`` or ``failing``, as the last
            round ended; ``held``, removals wait for ``poller release``; ``paused``, by an operator, whatever
            else is true.
        mode: of the last round; None before the first.
        error: of the last round, where it failed.
        good_at: when the last good round ended, RFC 3339.
        good_age_seconds: how long ago that is.
        round: what the last round counted; None before the first.
        records: how many are known and not removed.
        events: how many were published so far.
        stream_length: how many of these the stream still holds.
        stream_bytes: the memory that it takes, about; None where nobody asked.
        stream_oldest: when the first of these was published, RFC 3339; None where there is none, or nobody asked.
        held_by: the consumer group for which that one stays, though it is older than ``retention.age``; None likewise.
        quarantined: how many unusable records are kept.
        unidentified: how many records of the last full reading had no id that can be read; if any, it removed nothing.
        delta_token: whether the next round is a delta.
        paging: how its listings were seen to end; None before one was read.
        delta_token_on: on which pages of a listing a delta token stood; None likewise.
        refused: the parameters that the API refused and that are left out since, in words.
        listings: how many are read, of a feed with one for each qualification; else 0.
        oldest_seconds: how long ago the listing was read that was not read for the longest time; None before all were.
        lost: what the store has lost of the feed last, in words; None where nothing was lost.
        lost_at: when that was noticed, RFC 3339.
        lost_age_seconds: how long ago that is.
        lease: whether some process polls the feed now.
        lease_seconds: for how long its lease still lasts unless it is renewed; None where there is none.
        owner: the process that has the lease; None where there is none, or its name cannot be told.
        next_at: when the next round is due, RFC 3339, as the process that polls it last wrote it; None where it is
            paused, or nobody polls it.
        next_seconds: in how many seconds that is; negative where it is over, and the round under way or late.
        paused_by: who has paused it; None where it is not paused.
        paused_reason: why, in words; may be empty.
        paused_at: since when, RFC 3339.
        paused_age_seconds: for how long.
        backwards: how many versions were older than the known one by their lastModifiedAt, ever.
        held_versions: how many of these are held back now, with ``versions = "newest"``.
        held_reason: why removals wait, in words, with the way out; None where none do. Good rounds leave it.
        held_at: since when, RFC 3339; None likewise, or where it is not known.
        held_age_seconds: for how long.
        confirming: whether it is read in full again at its next turns, for records may have slipped over the edge of a
            page while it was read.
        confirmations: how many such readings there were, where it is, or was given up.
        late: how many records they brought that neither the readings before nor a delta had brought.
        progress: how far the round has come that is under way, where it takes longer than a moment.
    """

    feed: str
    state: FeedCondition
    mode: str | None
    error: str | None
    good_at: str | None
    good_age_seconds: float | None
    round: Counts | None
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
    def under_way(self) -> str | None:
        """How far the round has come that takes long, in words."""
        if self.progress is None:
            return None
        counts = f"{self.progress.pages} pages, {self.progress.records} records"
        return f"a round has run for {ago(self.progress.seconds)} ({self.progress.mode}): {counts} so far"

    @property
    def confirmation(self) -> str | None:
        """Whether records may have slipped over the edge of a page, in words."""
        brought = f"{self.confirmations} further readings brought {self.late} records late"
        if self.confirming:
            so_far = f"; {brought}" if self.confirmations else ""
            return f"being confirmed: it is read in full again, for pages may have moved while they were read{so_far}"
        if self.confirmations and not self.late:
            return (
                f"not confirmed: {self.confirmations} further readings could not tell whether records slipped between "
                "pages; if they took longer than max_round, make it longer"
            )
        if self.confirmations:
            return f"not confirmed: {brought}, for pages move while they are read; a larger limit makes fewer of them"
        return None


class _LastRound(Counts, frozen=True):
    mode: str | None = None
    ok: bool = True
    error: str | None = None


async def feed_statuses(
    client: Redis, settings: Settings, *, now: datetime, feeds: Sequence[str] | None = None
) -> list[FeedStatus]:
    """The status of every feed, in the order of the configuration, with what is known of its stream.

    Args:
        client: of the store.
        settings: the configuration.
        now: UTC.
        feeds: these alone, in this order.

    Raises:
        StoreError: see :func:`~poller.store.connection.translated`.
    """
    prefix, found = settings.redis.prefix, []
    oldest = Rule(settings.retention.age, settings.retention.max_bytes).oldest(now)
    for feed in settings.feed_ids if feeds is None else feeds:
        keys = FeedKeys.of(prefix, feed)
        status = await feed_status(client, feed, keys, now=now)
        stream = await stream_of(client, keys.events)
        holding = await held_by(client, prefix, feed, stream, oldest=oldest)
        found.append(
            msgspec.structs.replace(
                status,
                stream_bytes=stream.size,
                stream_oldest=recorded_time(moment_of(stream.first[0])) if stream.first else None,
                held_by=holding,
            )
        )
    return found


async def feed_status(client: Redis, feed_id: str, keys: FeedKeys, *, now: datetime) -> FeedStatus:
    """The status of one feed, without what is known of its stream.

    Args:
        client: of the store.
        feed_id: ``SOURCE/NAME``.
        keys: where it is kept.
        now: UTC.

    Raises:
        StoreError: see :func:`~poller.store.connection.translated`.
    """
    with translated(client):
        asking = client.pipeline(transaction=False)
        asking.hgetall(keys.state)
        asking.hlen(keys.snapshots)
        asking.xlen(keys.events)
        asking.xlen(keys.quarantine)
        asking.hlen(keys.listings)
        asking.pttl(keys.lease)
        asking.get(keys.lease)
        asking.get(keys.pause)
        fields, *sizes, lease_ms, holder, kept = await asking.execute()
    status = _status(feed_id, state_of(fields), sizes, lease_ms, now, owner=owner_of(holder))
    return status if kept is None else _paused(status, pause_of(kept), now)


def _status(
    feed_id: str, state: FeedState, sizes: Sequence[int], lease_ms: int, now: datetime, *, owner: str | None
) -> FeedStatus:
    last = _last_round(state.round)
    held = lease_ms > 0
    records, length, quarantined, listings = sizes
    learnt = learnt_of(state.learnt)
    confirmation = confirmation_of(state.confirmation)
    return FeedStatus(
        feed=feed_id,
        state="held" if state.held else _word(last, begun=held or records > 0),
        mode=last.mode if last else None,
        error=last.error if last else None,
        good_at=_written(state.good_at),
        good_age_seconds=_age(state.good_at, now),
        round=_counts(last) if last else None,
        records=max(records - (state.tombstones or 0), 0),
        events=state.sequence,
        stream_length=length,
        quarantined=quarantined,
        delta_token=state.delta_token is not None,
        paging=learnt.paging,
        delta_token_on=learnt.delta_token,
        refused=(*learnt.refused, *(("sinceDeltaToken",) if state.refusals >= REFUSALS else ())),
        listings=listings,
        oldest_seconds=_age(state.oldest, now),
        lost=state.lost,
        lost_at=_written(state.lost_at),
        lost_age_seconds=_age(state.lost_at, now),
        lease="held" if held else "free",
        lease_seconds=lease_ms / 1000 if held else None,
        owner=owner,
        next_at=_written(state.next_at) if held else None,
        next_seconds=_ahead(state.next_at, now) if held else None,
        unidentified=state.unidentified,
        backwards=state.backwards,
        held_versions=state.held_versions,
        held_reason=state.held,
        held_at=_written(state.held_at) if state.held else None,
        held_age_seconds=_age(state.held_at, now) if state.held else None,
        confirming=confirmation is not None and confirmation.due,
        confirmations=confirmation.readings if confirmation else 0,
        late=confirmation.late if confirmation else 0,
        progress=progress_of(state.progress) if held else None,
    )


def _paused(status: FeedStatus, pause: Pause, now: datetime) -> FeedStatus:
    return msgspec.structs.replace(
        status,
        state="paused",
        next_at=None,
        next_seconds=None,
        paused_by=pause.by,
        paused_reason=pause.reason,
        paused_at=_written(pause.at),
        paused_age_seconds=_age(pause.at, now),
    )


def _written(moment: datetime | None) -> str | None:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z") if moment else None


def _age(moment: datetime | None, now: datetime) -> float | None:
    return round((now - moment).total_seconds(), 3) if moment else None


def _ahead(moment: datetime | None, now: datetime) -> float | None:
    return round((moment - now).total_seconds(), 3) if moment else None


def _word(last: _LastRound | None, *, begun: bool) -> FeedCondition:
    if last is None:
        return "reading" if begun else "never read"
    return "ok" if last.ok else "failing"


def _last_round(text: str | None) -> _LastRound | None:
    """The state's last round; None where there is none, or another version wrote it in a form that is not ours."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=_LastRound)
    except msgspec.MsgspecError:
        return None


def _counts(last: _LastRound) -> Counts:
    counted: dict[str, Any] = {name: getattr(last, name) for name in Counts.__struct_fields__}
    return Counts(**counted)
