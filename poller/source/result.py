"""How a round ended, in the words of ``poller once --json``."""

from __future__ import annotations

from datetime import timedelta
from typing import Final, Literal

import msgspec

from poller.changes.commit import Tally
from poller.source.feed import Mode
from poller.source.learning import Learnt
from poller.store.state import Loss

_OURS: Final = frozenset({"away", "held", "learnt", "loss", "token", "wait"})


class RoundResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a round ended.

    Attributes:
        feed: ``SOURCE/NAME``.
        mode: what kind of reading it was; ``skipped`` where another process has the feed's lease.
        ok: whether it was completed (or rightly skipped).
        pages: how many were read and committed.
        records: how many these held: the sum of created, modified, unchanged and quarantined.
        removed: how many known records turned out to be gone.
        seconds: how long the round took.
        error: one line where it failed, else None.
        held: why removals wait for an operator, where this round is the first to hold them.
        learnt: what is known of the API, where this round has learnt something new.
        away: whether it failed because the store was away or did not take what was to be written.
        token: what became of the feed's delta token: the round's own took its place (``moved``), it stands (``kept``),
            or there is none.
        loss: what the store was found to have lost of the feed when the round began.
        wait: of a skipped round, how long the other's lease still lasts if it is not renewed.
    """

    feed: str
    mode: Mode
    ok: bool
    pages: int = 0
    records: int = 0
    created: int = 0
    modified: int = 0
    removed: int = 0
    unchanged: int = 0
    quarantined: int = 0
    seconds: float = 0.0
    error: str | None = None
    held: str | None = None
    learnt: Learnt | None = None
    away: bool = False
    token: Literal["moved", "kept", "none"] = "none"  # noqa: S105 -- a word
    loss: Loss | None = None
    wait: timedelta | None = None

    @classmethod
    def of(cls, feed: str, mode: Mode, tally: Tally, *, pages: int, seconds: float, error: str | None) -> RoundResult:
        """The result of a round that read something, or tried to."""
        counts = {name: getattr(tally, name) for name in tally.__struct_fields__}
        return cls(
            feed=feed, mode=mode, ok=error is None, pages=pages, seconds=round(seconds, 3), error=error, **counts
        )

    @property
    def public(self) -> dict[str, object]:
        """What ``poller once --json`` prints and the feed's state keeps."""
        return {name: getattr(self, name) for name in self.__struct_fields__ if name not in _OURS}

    @property
    def changes(self) -> int:
        """How many events were published, or would have been but for a silent baseline."""
        return self.created + self.modified + self.removed
