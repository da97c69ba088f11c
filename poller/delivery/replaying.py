"""Where a replay stands: which past events come next, and up to which all are done with.

Theory of operation
-------------------
A replay is a span of the stream, however long. It is read some entries at a time, and what is kept of it is one place:
after a crash it goes on there, so that at most what was on its way comes twice. An event that fails is parked as any
other, and the replay goes past it.

The law: the place is never beyond an entry that is neither settled nor parked. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from poller.store.entry_ids import before
from poller.store.replays import ReplayedEntry, ReplayPlace, ReplaySpan


class Replay:
    """The replay that a pair works off, if there is one."""

    def __init__(self, span: ReplaySpan | None = None) -> None:
        """Take what is kept of it; ``open`` are the entries that were read and are not done with, in their order."""
        self.open: dict[str, None] = {}
        self._span = span
        self._read = self._written = span.after if span else ""
        self._exhausted = span is None

    def follows(self, span: ReplaySpan | None) -> Replay:
        """This one, where that is what is kept of it; else the one that has taken its place."""
        kept, known = (one.id if one else None for one in (span, self._span))
        return self if kept == known else Replay(span)

    def wants(self, most: int) -> ReplaySpan | None:
        """What of it is to be read next, if there are fewer than ``most`` that are not done with."""
        if self._span is None or self._exhausted or len(self.open) >= most:
            return None
        return ReplaySpan(self._span.id, self._read, self._span.to)

    def took(self, entries: Sequence[ReplayedEntry], *, most: int) -> None:
        """These were read, where ``most`` were asked for."""
        self._exhausted = len(entries) < most
        if entries:
            self._read = entries[-1][0]

    def settled(self, entry_id: str) -> None:
        """This entry is delivered, given up, or parked."""
        self.open.pop(entry_id, None)

    @property
    def place(self) -> ReplayPlace | None:
        """What is to be written of it; None where that is as it was."""
        if self._span is None:
            return None
        if self._exhausted and not self.open:
            return ReplayPlace(self._span.id, "")
        oldest = next(iter(self.open), None)
        after = before(oldest) if oldest else self._read
        return None if after == self._written else ReplayPlace(self._span.id, after)

    def wrote(self, place: ReplayPlace) -> None:
        """This place was written."""
        if self._span is None or place.id != self._span.id:
            return
        self._written = place.after
        if not place.after:
            self._span = None
