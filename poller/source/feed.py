"""A feed as its round sees it: settings, origin, progress and result.

**Invariants**

- The origin of a feed is written with its first records, and replaced only by a complete full reading of another one.
- A feed that knows records of one origin publishes nothing of another one until an operator has decided: all records
  would appear as removed and created.
- A round that ends within :data:`SHOWN_AFTER` seconds writes no progress. Progress is a duration, not a moment.
- What was committed before a round is given up stays; the delta token stays where it was.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import blake2b
from typing import Final, Literal

import msgspec

from poller.changes.diff import Snapshot
from poller.changes.full_readings import confirmation_of
from poller.changes.plan import COUNTERS, RemovalGuard, RoundCounts
from poller.changes.records import Record, Rejected, record_reader, subject_of
from poller.clock import Clock
from poller.errors import RoundTimeExceeded
from poller.resources import Resource
from poller.source.paging import DetectedCapabilities, ListQuery
from poller.source.retry import PATIENCE
from poller.store.feed_state import PROGRESS, FeedState, Loss

# This many fresh tokens refused in a row mean that the API accepts none.
REFUSALS: Final = 3

# This many requests in a row, refused only with the delta token, cast doubt on the token.
DOUBTFUL: Final = 3
# Answers that say nothing about the token: no credential, too slow, too many requests.
_NOT_ABOUT_TOKENS: Final = frozenset({401, 407, 408, 429})

# One answer of a backend that lags behind its siblings proves nothing; two answers this far apart count.
APART: Final = timedelta(seconds=2)
SECOND_LOOK: Final = timedelta(minutes=1)
# Listings and single records may come from a copy of the data that lags behind the deltas by this much.
LAG: Final = timedelta(seconds=10)


class RoundMode(StrEnum):
    """The kind of reading; all but ``skipped`` are causes of events too."""

    BASELINE = "baseline"
    DELTA = "delta"
    FULL = "full"
    RECONCILE = "reconcile"
    RESYNC = "resync"
    SKIPPED = "skipped"


class Feed(msgspec.Struct, frozen=True):
    """One resource of one source.

    Attributes:
        id: ``SOURCE/NAME``.
        resource: where it is listed.
        query: how it is requested.
        event_source: prefix of its events' ``source``.
        type_prefix: prefix of its events' ``type``.
        base_url: of its source.
        binding: the API and the credential that tokens are bound to, in words; a change leads to a resync.
        id_field: the field of a record that holds its id.
        delta: whether delta tokens are used.
        delta_on_trial: whether they are given up if the API refuses each of them (``delta = "auto"``).
        partial: whether records of a delta may carry only some of their keys; absent ones are kept.
        ignore: JSON pointers that are left out of comparisons.
        silent_baseline: whether the first reading publishes nothing.
        reconcile: how often a delta feed is read in full; None: never.
        removals: whether records that are gone are found, confirmed and published as removed.
        breaker: how much may be missing before removals are held.
        apart: the least time between the two answers that confirm a removal.
        lag: the least time between the two answers for a record that was published within this time, in a feed with
            deltas, for its listing may lag behind them; zero: it does not.
        newest: whether an older version of a known record is held back until two full readings have shown it.
        second_look: the least time between these two, and the time after which a full reading looks once more for what
            the listing of a feed with deltas did not show yet.
        expired_statuses: answers that may mean "this token is no longer valid".
        qualifications: ids whose listings are read, for a resource with one listing for each.
        discover: whether those that the source's other feeds name are read too.
        slot: how long a round over many listings may take before the next one goes on; None: it reads all.
        at_once: the number of listings requested at the same time.
        max_round: how long a round may take before it is given up.
        patience: how long one request may wait and be retried before the next round is the better time.
    """

    id: str
    resource: Resource
    query: ListQuery
    event_source: str
    type_prefix: str
    base_url: str = ""
    binding: str = ""
    id_field: str = "id"
    delta: bool = True
    delta_on_trial: bool = False
    partial: bool = False
    ignore: tuple[str, ...] = ()
    silent_baseline: bool = False
    reconcile: timedelta | None = None
    removals: bool = True
    breaker: RemovalGuard = RemovalGuard()
    apart: timedelta = APART
    lag: timedelta = LAG
    newest: bool = False
    second_look: timedelta = SECOND_LOOK
    expired_statuses: frozenset[int] = frozenset({400, 404, 409, 410, 412})
    qualifications: tuple[str, ...] = ()
    discover: bool = False
    slot: timedelta | None = None
    at_once: int = 1
    max_round: timedelta = timedelta(hours=1)
    patience: timedelta = PATIENCE

    def last_seen(self, key: str, snapshot: Snapshot) -> Record:
        """The record of a snapshot; if the snapshot is unreadable, only its key.

        Raises:
            ValueError: it has no id under the configured id field.
        """
        if snapshot.unreadable:
            return Record(key, subject_of(key), b"", None, None)
        record = record_reader(self.id_field)(snapshot.raw)
        if isinstance(record, Rejected):
            raise ValueError(record.reason)  # noqa: TRY004 -- its value is what is wrong
        return record

    def absence_path(self, key: str, snapshot: Snapshot) -> str | None:
        """As :meth:`poller.resources.Resource.absence_path`, of a known record.

        Raises:
            ValueError: see :meth:`last_seen`.
        """
        return self.resource.absence_path(self.last_seen(key, snapshot).subject)

    @property
    def origin(self) -> FeedOrigin:
        """Where its records come from."""
        return FeedOrigin(self.base_url, self.resource.path, self.event_source)

    @property
    def fingerprint(self) -> str:
        """A hash of the query that the delta token belongs to."""
        return self.query.fingerprint(f"{self.binding}\0{self.resource.path}")

    def rules(self, fields: tuple[str, ...]) -> str:
        """A hash of what decides which records are requested, compared and found missing; ``fields``: as requested."""
        deciding = (self.fingerprint, self.id_field, self.ignore, self.removals, fields)
        return blake2b(repr(deciding).encode(), digest_size=8).hexdigest()


def casts_doubt(status: int) -> bool:
    """Whether this answer to a request with a delta token may be about the token."""
    return 400 <= status < 500 and status not in _NOT_ABOUT_TOKENS  # noqa: PLR2004 -- the client's errors


def is_to_be_tried_without(failures: int) -> bool:
    """Whether a request without the token is due: after 3, 6, 12, 24 doubtful answers."""
    doublings, rest = divmod(failures, DOUBTFUL)
    return rest == 0 and doublings > 0 and doublings & (doublings - 1) == 0


def due_mode(feed: Feed, state: FeedState, now: datetime) -> tuple[RoundMode, str | None]:
    """The kind of reading that is due, and the delta token it starts from.

    A feed that was never read completely has its baseline first. A token that belongs to another query is not used. A
    feed that is being confirmed is read in full, with its deltas beside that.
    """
    if state.read_at is None:
        return RoundMode.BASELINE, None
    if state.resync or state.query != feed.fingerprint:
        return RoundMode.RESYNC, None
    if not feed.delta or state.delta_token is None or (feed.delta_on_trial and state.refusals >= REFUSALS):
        return RoundMode.FULL, None
    # A reading in the future was recorded by a clock that has been set back: its age is unknown.
    late = feed.reconcile is not None and abs(now - state.read_at) >= feed.reconcile
    if state.released or late or _second_look_is_due(feed, state) or is_recheck_due(feed, state.recheck_at, now):
        return RoundMode.RECONCILE, None
    confirmation = confirmation_of(state.confirmation)
    if confirmation is not None and confirmation.due:
        return RoundMode.RECONCILE, None
    return RoundMode.DELTA, state.delta_token


def _second_look_is_due(feed: Feed, state: FeedState) -> bool:
    """Whether held versions need a full reading now.

    That is at their time, or immediately if no version is to be held any more.
    """
    if state.second_look is None:
        return False
    left = timedelta(milliseconds=state.second_look - state.now_ms)
    if left > 2 * feed.second_look:  # longer than it can have been: the server's clock was set back
        return True
    return not feed.newest or left <= timedelta()


def is_recheck_due(feed: Feed, at: datetime | None, now: datetime) -> bool:
    """Whether a full reading has to look once more for what the listing did not show yet."""
    return at is not None and recheck_wait(feed, at, now) is None


def recheck_wait(feed: Feed, at: datetime | None, now: datetime) -> timedelta | None:
    """How long that reading is to wait; None: it is due, or there is none.

    One that is due and has failed comes with the next regular round.
    """
    # Longer than it can have been: the server's clock was set back.
    return at - now if at is not None and timedelta() < at - now <= 2 * feed.second_look else None


class FeedOrigin(msgspec.Struct, frozen=True):
    """Where a feed is read from, and the name of that place in events.

    Attributes:
        base_url: of the source.
        path: of the listing, relative to that.
        event_source: prefix of the events' ``source``.
    """

    base_url: str
    path: str
    event_source: str

    @property
    def mark(self) -> str:
        """Its form in the feed's state."""
        return msgspec.json.encode(self).decode()


def is_known_origin(origin: FeedOrigin, state: FeedState) -> bool:
    """Whether the known records came from here; True if there are none."""
    return state.origin in (None, origin.mark) or state.kept_records == 0


def is_withheld_origin(origin: FeedOrigin, state: FeedState) -> bool:
    """Whether nothing of this origin may be published before an operator has released it."""
    return not is_known_origin(origin, state) and not (state.released and state.held_origin == origin.mark)


def withheld_origin_reason(feed: str, origin: FeedOrigin, state: FeedState) -> str:
    """Why nothing is published, and what an operator can do."""
    return (
        f"{_differences(origin, state.origin)}: nothing is published. If the API has moved, "
        f"`poller release {feed}` publishes what differs; if it is another API, `poller resync {feed} --anew` reads it "
        "as new; else put the old value back"
    )


def _differences(origin: FeedOrigin, known: str | None) -> str:
    try:
        before = msgspec.json.decode(known or "", type=FeedOrigin)
    except msgspec.MsgspecError:
        return "the known records came from another API"
    differing = [name for name in FeedOrigin.__struct_fields__ if getattr(before, name) != getattr(origin, name)]
    if "base_url" in differing and before.event_source == before.base_url and origin.event_source == origin.base_url:
        differing.remove("event_source")  # it follows base_url
    changed = (f'{name} was "{getattr(before, name)}" and is "{getattr(origin, name)}" now' for name in differing)
    return " and ".join(changed)


SHOWN_AFTER: Final = 1.0  # seconds; and between two writes


class Progress(msgspec.Struct, frozen=True):
    """The progress of a running round.

    Attributes:
        mode: the kind of reading.
        pages: how many were committed.
        records: how many these held.
        seconds: the time since its start.
    """

    mode: str
    pages: int
    records: int
    seconds: float


class RoundTimer:
    """Measures how long a round takes, shows its progress and ends it."""

    def __init__(
        self,
        mode: str,
        longest: timedelta,
        tally: RoundCounts,
        write: Callable[[Mapping[str, str | None]], Awaitable[None]],
        clock: Clock,
    ) -> None:
        """Start it.

        Args:
            mode: the kind of reading.
            longest: how long the round may take.
            tally: what was committed so far; the round goes on counting.
            write: commits marks of the feed's state.
            clock: of this process.
        """
        self.shown = False
        self._mode = mode
        self._longest = longest
        self._tally = tally
        self._write = write
        self._clock = clock
        self._began = self._told = clock.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether the round has taken as long as it may."""
        return self._clock.monotonic() - self._began >= self._longest.total_seconds()

    def exceeded(self) -> RoundTimeExceeded:
        """The error of a round that is over before everything was read."""
        return RoundTimeExceeded(
            f"the round is given up after {self._longest.total_seconds():g} s (max_round), "
            f"{self._tally.pages} pages and {self._tally.records} records; what was read is kept; if a whole reading "
            "takes longer than that, make max_round longer"
        )

    async def show(self) -> None:
        """Commit the progress if it is time and there is more to come.

        Raises:
            StoreError: see :meth:`poller.source.writer.RoundStore.commit`.
        """
        now = self._clock.monotonic()
        if now - self._told < SHOWN_AFTER:
            return
        self._told, self.shown = now, True
        progress = Progress(self._mode, self._tally.pages, self._tally.records, round(now - self._began, 3))
        await self._write({PROGRESS: msgspec.json.encode(progress).decode()})


def decode_progress(text: str | None) -> Progress | None:
    """Decode the progress in the feed's state; None: unknown version."""
    try:
        return msgspec.json.decode(text, type=Progress) if text else None
    except msgspec.MsgspecError:
        return None


class RoundResult(RoundCounts, kw_only=True):
    """How a round ended, with its counters.

    Attributes:
        feed: ``SOURCE/NAME``.
        mode: what kind of reading it was; ``skipped`` where another process has the feed's lease.
        ok: whether it was completed (or rightly skipped).
        error: why it failed, in one line; None: it did not.
        held: why removals wait for an operator; None: this round is not the first to hold them, or holds none.
        learnt: what is known of the API; None: this round found nothing new.
        away: whether it failed because the store was unavailable or did not accept a write.
        token: the fate of the feed's delta token: replaced by the round's own (``moved``), unchanged (``kept``), or
            ``none``.
        loss: the loss that was found when the round began; None: none.
        late: how many records a full reading brought that no delta beside it had; None: unknown.
        unidentified: how many records have no id that can be read: then a full reading removes nothing.
        backwards: how many versions were older than the known one.
        held_versions: how many are held back.
        second_look: after how long a full reading is due for these; None where none are.
        recheck: after how long a full reading looks once more for what the listing did not show; None: none does, or
            with the next regular round.
        paused: of a skipped round, that the feed is paused, by whom and why; in ``public`` under ``error``.
        wait: of a skipped round, how long the other's lease still lasts if it is not renewed.
    """

    feed: str
    mode: RoundMode
    ok: bool
    error: str | None = None
    held: str | None = None
    learnt: DetectedCapabilities | None = None
    away: bool = False
    token: Literal["moved", "kept", "none"] = "none"  # noqa: S105 -- a word
    loss: Loss | None = None
    late: int | None = None
    unidentified: int = 0
    backwards: int = 0
    held_versions: int = 0
    second_look: timedelta | None = None
    recheck: timedelta | None = None
    paused: str | None = None
    wait: timedelta | None = None

    @property
    def public(self) -> dict[str, object]:
        """What ``poller once --json`` prints and the feed's state keeps."""
        counters = {name: getattr(self, name) for name in COUNTERS}
        error = self.error if self.paused is None else self.paused
        return {"feed": self.feed, "mode": self.mode, "ok": self.ok, **counters, "error": error}
