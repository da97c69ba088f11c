"""A feed as its round sees it: one resource of one source, and what kind of reading is due."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import msgspec

from poller.changes.events import Cause, EventFrame
from poller.source.paging import Query
from poller.source.resources import Resource
from poller.store.state import FeedState


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
        id_field: the field of a record that holds its id.
        delta: whether delta tokens are used.
        strip: leaves out what does not count in comparisons; None: all counts.
        silent_baseline: whether the first reading publishes nothing.
        reconcile: how often a delta feed is read in full; None for never.
        expired_statuses: answers that may mean "this token is no longer valid".
        qualifications: ids whose listings are read, for a resource with one listing for each.
        discover: whether those that the source's other feeds name are read too.
    """

    id: str
    resource: Resource
    query: Query
    event_source: str
    type_prefix: str
    id_field: str = "id"
    delta: bool = True
    strip: Callable[[Any], Any] | None = None
    silent_baseline: bool = False
    reconcile: timedelta | None = None
    expired_statuses: frozenset[int] = frozenset({400, 404, 409, 410, 412})
    qualifications: tuple[str, ...] = ()
    discover: bool = False

    def frame(self, *, generation: str, mode: Mode, path: str) -> EventFrame:
        """What the events of one listing share."""
        return EventFrame(
            feed=self.id,
            generation=generation,
            source=self.event_source + path,
            type_stem=f"{self.type_prefix}.{self.resource.type_name}",
            cause=Cause(mode),
        )

    @property
    def fingerprint(self) -> str:
        """A hash of the query that the delta token belongs to."""
        return self.query.fingerprint(self.resource.path)


def due(feed: Feed, state: FeedState, now: datetime) -> tuple[Mode, str | None]:
    """The kind of reading that is due, and the delta token it starts from.

    A feed that was never read completely has its baseline before it, however often it was begun. A token that belongs
    to another query is not used.
    """
    if state.read_at is None:
        return Mode.BASELINE, None
    if state.query != feed.fingerprint:
        return Mode.RESYNC, None
    if not feed.delta or state.delta_token is None:
        return Mode.FULL, None
    if feed.reconcile is not None and now - state.read_at >= feed.reconcile:
        return Mode.RECONCILE, None
    return Mode.DELTA, state.delta_token
