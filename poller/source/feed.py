"""A feed as its round sees it: one resource of one source, and what kind of reading is due."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

import msgspec

from poller.changes.classify import Snapshot
from poller.changes.confirmation import confirmation_of
from poller.changes.events import Cause, EventFrame
from poller.changes.records import Record, Rejected, record_reader, subject_of
from poller.changes.removal import Breaker
from poller.source.origin import FeedOrigin
from poller.source.paging import Query
from poller.source.resources import Resource
from poller.source.retrying import PATIENCE
from poller.store.state import FeedState

# So many tokens refused in a row, each as fresh as it can be, mean that the API takes none.
REFUSALS: Final = 3

# One answer of a backend that lags behind its siblings says nothing; two as far apart as this are taken for the truth.
APART: Final = timedelta(seconds=2)
SECOND_LOOK: Final = timedelta(minutes=1)


class Mode(StrEnum):
    """The kind of reading that a round is; all but the last are the causes of events too."""

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
        query: how it is asked for.
        event_source: prefix of its events' ``source``.
        type_prefix: prefix of its events' ``type``.
        base_url: of its source.
        binding: the API and the credential that tokens are bound to, in words; a change leads to a resync.
        id_field: the field of a record that holds its id.
        delta: whether delta tokens are used.
        delta_on_trial: whether they are given up where the API refuses each of them (``delta = "auto"``).
        partial: whether the records of a delta may carry only some of their keys; absent ones are kept.
        strip: leaves out what does not count in comparisons; None: all counts.
        silent_baseline: whether the first reading publishes nothing.
        reconcile: how often a delta feed is read in full; None for never.
        removals: whether records that are gone are found, confirmed and published as removed.
        breaker: how much may be missing at once.
        apart: the least time between the two answers that confirm a removal.
        newest: whether an older version of a known record is held back until two full readings have shown it.
        second_look: the least time between these two.
        expired_statuses: answers that may mean "this token is no longer valid".
        qualifications: ids whose listings are read, for a resource with one listing for each.
        discover: whether those that the source's other feeds name are read too.
        slot: how long a round over many listings may take before the next one goes on; None: it reads all.
        at_once: how many listings are asked for at the same time.
        max_round: how long a round may take before it is given up.
        patience: how long one request may wait and repeat before the next round is the better time to ask again.
    """

    id: str
    resource: Resource
    query: Query
    event_source: str
    type_prefix: str
    base_url: str = ""
    binding: str = ""
    id_field: str = "id"
    delta: bool = True
    delta_on_trial: bool = False
    partial: bool = False
    strip: Callable[[Any], Any] | None = None
    silent_baseline: bool = False
    reconcile: timedelta | None = None
    removals: bool = True
    breaker: Breaker = Breaker()
    apart: timedelta = APART
    newest: bool = False
    second_look: timedelta = SECOND_LOOK
    expired_statuses: frozenset[int] = frozenset({400, 404, 409, 410, 412})
    qualifications: tuple[str, ...] = ()
    discover: bool = False
    slot: timedelta | None = None
    at_once: int = 1
    max_round: timedelta = timedelta(hours=1)
    patience: timedelta = PATIENCE

    def frame(
        self, *, generation: str, mode: Mode, path: str, extensions: Mapping[str, str] = MappingProxyType({})
    ) -> EventFrame:
        """What the events of one listing share."""
        return EventFrame(
            feed=self.id,
            generation=generation,
            source=self.event_source + path,
            type_stem=f"{self.type_prefix}.{self.resource.type_name}",
            cause=Cause(mode),
            extensions=extensions,
        )

    def last_seen(self, key: str, snapshot: Snapshot) -> Record:
        """The record of a snapshot, its identity read again; by its key alone where the snapshot cannot be read.

        Raises:
            ValueError: it has none under the id field that is configured now.
        """
        if snapshot.unreadable:
            return Record(key, subject_of(key), b"", None, None)
        record = record_reader(self.id_field)(snapshot.raw)
        if isinstance(record, Rejected):
            raise ValueError(record.reason)  # noqa: TRY004 -- its value is what is wrong
        return record

    def record_path(self, key: str, snapshot: Snapshot) -> str | None:
        """The path at which the API answers for a single record; None where there is none.

        Raises:
            ValueError: see :meth:`last_seen`.
        """
        return self.resource.record_path(self.last_seen(key, snapshot).subject)

    @property
    def origin(self) -> FeedOrigin:
        """Where its records come from."""
        return FeedOrigin(self.base_url, self.resource.path, self.event_source)

    @property
    def fingerprint(self) -> str:
        """A hash of the query that the delta token belongs to."""
        return self.query.fingerprint(f"{self.binding}\0{self.resource.path}")


def due(feed: Feed, state: FeedState, now: datetime) -> tuple[Mode, str | None]:
    """The kind of reading that is due, and the delta token it starts from.

    A feed that was never read completely has its baseline before it, however often it was begun. A token that belongs
    to another query is not used. A feed that is being confirmed is read in full, its deltas beside that.
    """
    if state.read_at is None:
        return Mode.BASELINE, None
    if state.resync or state.query != feed.fingerprint:
        return Mode.RESYNC, None
    if not feed.delta or state.delta_token is None or (feed.delta_on_trial and state.refusals >= REFUSALS):
        return Mode.FULL, None
    # A reading that is to come was noted by a clock that has been set back: how long ago it was nobody knows.
    late = feed.reconcile is not None and abs(now - state.read_at) >= feed.reconcile
    if state.released or late or _second_look_is_due(feed, state):
        return Mode.RECONCILE, None
    confirmation = confirmation_of(state.confirmation)
    if confirmation is not None and confirmation.due:
        return Mode.RECONCILE, None
    return Mode.DELTA, state.delta_token


def _second_look_is_due(feed: Feed, state: FeedState) -> bool:
    """Whether what is held back asks for a full reading: at its time, or now where nothing is to be held back."""
    if state.second_look is None:
        return False
    left = timedelta(milliseconds=state.second_look - state.now_ms)
    if left > 2 * feed.second_look:  # longer than it can have been: the server's clock was set back
        return True
    return not feed.newest or left <= timedelta()
