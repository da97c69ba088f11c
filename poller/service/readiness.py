"""Whether this process is ready, and what it knows of its feeds: what ``/readyz`` answers.

Law: ready means that this process does its work: it has begun, its store is there and keeps its promises, and it was
not told to stop. What a source does is no matter of readiness: another process would find the same, so a feed that
fails is named and no more.

Refuses to know: HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from poller.hiding import without_credentials
from poller.service.store_status import StoreCheck
from poller.service.watching import Reason, StoreWatch


class Report(msgspec.Struct, frozen=True):
    """The answer, key for key.

    Attributes:
        ready: whether there is no reason against it.
        reasons: why this process is not ready.
        failing: the feeds whose last round failed, by ``SOURCE/NAME``, each with why.
        store: everything that was looked at about the store, the last time it was.
    """

    ready: bool
    reasons: tuple[Reason, ...]
    failing: Mapping[str, str]
    store: tuple[StoreCheck, ...]


class Readiness:
    """How this process does, from its start to its end."""

    def __init__(self, watch: StoreWatch) -> None:
        """Begin, not ready."""
        self._watch = watch
        self._phase = "starting"
        self._failing: dict[str, str] = {}

    def started(self) -> None:
        """Its work has begun."""
        self._phase = "started"

    def stopping(self) -> None:
        """It was told to stop, or is about to."""
        self._phase = "stopping"

    def round(self, feed: str, error: str | None) -> None:
        """How the last round of a feed ended; None: well."""
        self._failing.pop(feed, None)
        if error is not None:
            self._failing[feed] = error

    async def report(self) -> Report:
        """How it is now; asks the store where what is known of it is old."""
        reasons = await self._watch.fresh()
        if self._phase == "stopping":
            reasons = [Reason("stopping", "this process was told to stop")]
        elif self._phase == "starting" and not reasons:
            reasons = [Reason("starting", "this process has not begun its work yet")]
        return Report(
            ready=not reasons,
            reasons=tuple(Reason(one.name, without_credentials(one.text)) for one in reasons),
            failing={feed: without_credentials(text) for feed, text in sorted(self._failing.items())},
            store=tuple(StoreCheck(one.name, one.severity, one.text) for one in self._watch.findings),
        )
