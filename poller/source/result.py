"""How a round ended, in the words of ``poller once --json``."""

from __future__ import annotations

from datetime import timedelta
from typing import Final, Literal

import msgspec

from poller.changes.commit import Tally
from poller.source.feed import Mode
from poller.source.learning import Learnt
from poller.store.state import Loss

_OURS: Final = frozenset(
    {"away", "backwards", "held", "held_versions", "late", "learnt", "loss", "paused", "second_look"}
    | {"token", "unidentified", "wait"}
)


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
        late: how many records a full reading brought that no delta beside it had; None where that cannot be told.
        unidentified: how many records of a full reading have no id that can be read: then nothing is removed.
        backwards: how many versions were older than the known one.
        held_versions: how many are held back.
        second_look: after how long a full reading is due for these; None where none are.
        paused: of a skipped round, that the feed is paused, by whom and why; in ``public`` under ``error``.
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
    late: int | None = None
    unidentified: int = 0
    backwards: int = 0
    held_versions: int = 0
    second_look: timedelta | None = None
    paused: str | None = None
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
        told = {name: getattr(self, name) for name in self.__struct_fields__ if name not in _OURS}
        return told if self.paused is None else told | {"error": self.paused}

    @property
    def changes(self) -> int:
        """How many events were published, or would have been but for a silent baseline."""
        return self.created + self.modified + self.removed
