"""A feed as its round sees it: one resource of one source, and what kind of reading is due."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote

import msgspec

from poller.changes.classify import Snapshot
from poller.changes.events import Cause, EventFrame
from poller.changes.records import Record, Rejected, record_reader
from poller.changes.removal import Breaker
from poller.source.paging import Query
from poller.source.resources import PARENT, Resource
from poller.source.retrying import PATIENCE
from poller.store.state import FeedState

# So many tokens refused in a row, each as fresh as it can be, mean that the API takes none.
REFUSALS: Final = 3


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
        origin: the API and the credential that tokens are bound to, in words; a change leads to a resync.
        id_field: the field of a record that holds its id.
        delta: whether delta tokens are used.
        delta_on_trial: whether they are given up where the API refuses each of them (``delta = "auto"``).
        partial: whether the records of a delta may carry only some of their keys; absent ones are kept.
        strip: leaves out what does not count in comparisons; None: all counts.
        silent_baseline: whether the first reading publishes nothing.
        reconcile: how often a delta feed is read in full; None for never.
        removals: whether records that are gone are found, confirmed and published as removed.
        breaker: how much may be missing at once.
        expired_statuses: answers that may mean "this token is no longer valid".
        qualifications: ids whose listings are read, for a resource with one listing for each.
        discover: whether those that the source's other feeds name are read too.
        slot: how long a round over many listings may take before the next one goes on; None: it reads all.
        at_once: how many listings are asked for at the same time.
        patience: how long one request may wait and repeat before the next round is the better time to ask again.
    """

    id: str
    resource: Resource
    query: Query
    event_source: str
    type_prefix: str
    origin: str = ""
    id_field: str = "id"
    delta: bool = True
    delta_on_trial: bool = False
    partial: bool = False
    strip: Callable[[Any], Any] | None = None
    silent_baseline: bool = False
    reconcile: timedelta | None = None
    removals: bool = True
    breaker: Breaker = Breaker()
    expired_statuses: frozenset[int] = frozenset({400, 404, 409, 410, 412})
    qualifications: tuple[str, ...] = ()
    discover: bool = False
    slot: timedelta | None = None
    at_once: int = 1
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

    def last_seen(self, snapshot: Snapshot) -> Record:
        """The record of a snapshot, its identity read again.

        Raises:
            ValueError: it has none under the id field that is configured now.
        """
        record = record_reader(self.id_field)(snapshot.raw)
        if isinstance(record, Rejected):
            raise ValueError(record.reason)  # noqa: TRY004 -- its value is what is wrong
        return record

    def detail_path(self, snapshot: Snapshot) -> str:
        """The path at which the API answers for a single record.

        Raises:
            LookupError: the resource is listed only.
            ValueError: see :meth:`last_seen`.
        """
        if self.resource.detail_path is None:
            raise LookupError(f"{self.id} has no single-record endpoint")
        return self.resource.detail_path.replace(PARENT, quote(self.last_seen(snapshot).subject, safe=""))

    @property
    def fingerprint(self) -> str:
        """A hash of the query that the delta token belongs to."""
        return self.query.fingerprint(f"{self.origin}\0{self.resource.path}")


def due(feed: Feed, state: FeedState, now: datetime) -> tuple[Mode, str | None]:
    """The kind of reading that is due, and the delta token it starts from.

    A feed that was never read completely has its baseline before it, however often it was begun. A token that belongs
    to another query is not used.
    """
    if state.read_at is None:
        return Mode.BASELINE, None
    if state.resync or state.query != feed.fingerprint:
        return Mode.RESYNC, None
    if not feed.delta or state.delta_token is None or (feed.delta_on_trial and state.refusals >= REFUSALS):
        return Mode.FULL, None
    # A reading that is to come was noted by a clock that has been set back: how long ago it was nobody knows.
    if state.released or (feed.reconcile is not None and abs(now - state.read_at) >= feed.reconcile):
        return Mode.RECONCILE, None
    return Mode.DELTA, state.delta_token
