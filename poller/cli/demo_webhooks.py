"""What the demo counts of its webhooks: which events came, how late, in which order, and whether any is missing.

Law: an event that stands in a stream must come, with a signature that verifies. Of one record each revision comes after
the one before it; what comes twice counts once, for the promise is "at least once".

Knows neither the receiver nor the terminal.
"""

from __future__ import annotations

from datetime import datetime
from statistics import median

import msgspec

from poller.cli.lines import Event
from poller.errors import PollerError


class Tally(msgspec.Struct, frozen=True):
    """Counts of events.

    Attributes:
        came: verified, each once.
        missing: published, and did not come.
        disordered: did not come after the revision before them.
        refused: requests whose signature did not verify.
        after: median of the seconds from the stream to the webhook, of changes; None where there were none.
    """

    came: int
    missing: int
    disordered: int
    refused: int
    after: float | None

    @property
    def text(self) -> str:
        """One line of the summary."""
        signatures = "all verified" if not self.refused else f"{self.refused} not verified"
        order = "order kept" if not self.disordered else f"{self.disordered} out of order"
        losses = "nothing lost" if not self.missing else f"{self.missing} missing"
        after = "" if self.after is None else f", median {self.after * 1000:.0f} ms after the stream"
        return f"by webhook: {self.came} events, {signatures}{after}, {losses}, {order}"

    def judge(self) -> None:
        """See to it that nothing is wrong.

        Raises:
            PollerError: something is.
        """
        if self.missing or self.disordered or self.refused:
            raise PollerError(self.text)


class Webhooks:
    """All that was published, and what of it came."""

    def __init__(self) -> None:
        self._published: dict[str, datetime] = {}
        self._came: dict[str, datetime] = {}
        self._changes: set[str] = set()
        self._revisions: dict[tuple[str, str], int] = {}
        self._disordered = 0
        self._refused = 0

    def publish(self, event: Event, *, at: datetime) -> None:
        """Note an event that was read from its stream at ``at`` (UTC)."""
        self._published.setdefault(event.id, at)

    def take(self, event: Event, *, at: datetime) -> bool:
        """Count a verified event that came at ``at`` (UTC); whether it is worth showing.

        That is no event of a first reading, and none that has come before.
        """
        if event.id in self._came:
            return False
        self._came[event.id] = at
        record = (event.type.rsplit(".", 2)[0], event.subject)
        self._disordered += event.data.revision != self._revisions.get(record, 0) + 1
        self._revisions[record] = event.data.revision
        if event.data.cause == "baseline":
            return False
        self._changes.add(event.id)
        return True

    def refuse(self) -> None:
        """Count a request whose signature does not verify."""
        self._refused += 1

    def after(self, event_id: str) -> float | None:
        """The seconds from the stream to the webhook; None where it is not known to have come by both."""
        published, came = self._published.get(event_id), self._came.get(event_id)
        # The two readers race: one that is told later may have been sent earlier.
        return max(0.0, (came - published).total_seconds()) if published and came else None

    @property
    def missing(self) -> int:
        """How many events were published and have not come."""
        return len(self._published.keys() - self._came.keys())

    @property
    def tally(self) -> Tally:
        """All of it."""
        spans = [span for span in map(self.after, self._changes) if span is not None]
        after = median(spans) if spans else None
        return Tally(len(self._came), self.missing, self._disordered, self._refused, after)
