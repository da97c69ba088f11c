"""Whether this process is ready, and what it knows of its feeds: what ``/readyz`` answers.

Law: ready means that this process does its work: it has begun, its store is there and keeps its promises, and it was
not told to stop. What a source or a sink does is no matter of readiness: another process would find the same, so a feed
or a subscription that fails is named and no more.

Refuses to know: HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

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
        subscriptions: those of which nothing arrives, as far as this process delivers them, each with why.
    """

    ready: bool
    reasons: tuple[Reason, ...]
    failing: Mapping[str, str]
    store: tuple[StoreCheck, ...]
    subscriptions: Mapping[str, str] = {}


class Readiness:
    """How this process does, from its start to its end."""

    def __init__(self, watch: StoreWatch) -> None:
        """Begin, not ready."""
        self._watch = watch
        self._phase = "starting"
        self._failing: dict[str, str] = {}
        self._undelivered: Callable[[], Mapping[str, str]] = dict

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

    def delivering(self, failing: Callable[[], Mapping[str, str]]) -> None:
        """Who tells of the subscriptions that fail here, each with why."""
        self._undelivered = failing

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
            subscriptions={name: without_credentials(text) for name, text in sorted(self._undelivered().items())},
        )
