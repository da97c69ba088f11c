"""What a consumer group lost because its stream grew beyond ``retention.max_bytes``, as the scripts write it down.

Law: an overrun is told of once. It lasts until the group is past everything that was in the stream when it last lost
something; whatever goes until then belongs to it. Nobody has to be there when it happens: a row says whether it was
told.

Pure; :data:`poller.store.trim_scripts.SHRINK` writes the rows.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from poller.store.registrations import moment_of
from poller.store.trim_scripts import REPLAY

_UNKNOWN: Final = "-"
_GROUP: Final = "sub:"


class Overrun(msgspec.Struct, frozen=True):
    """One of them.

    Attributes:
        name: the group, or ``replay:`` and the group.
        row: as it is kept.
        told: whether somebody was told.
        at: when it began, UTC.
        first: the first entry that went.
        events: how many went, at most.
        sequence: of the first of them; None where it was no event of ours.
        last_sequence: of the last; None likewise.
    """

    name: str
    row: bytes
    told: bool
    at: datetime
    first: str
    events: int
    sequence: int | None
    last_sequence: int | None

    @property
    def replay(self) -> bool:
        """Whether what went was to be delivered once more."""
        return self.name.startswith(REPLAY)

    @property
    def group(self) -> str:
        """The consumer group."""
        return self.name.removeprefix(REPLAY)

    @property
    def subscription(self) -> str | None:
        """Whose group it is; None for one that is not ours."""
        return self.group.removeprefix(_GROUP) if self.group.startswith(_GROUP) else None

    @property
    def row_told(self) -> bytes:
        """The row of one that was told."""
        return b"1" + self.row[1:]


def overrun_of(name: bytes, row: bytes) -> Overrun | None:
    """A row read; None where another version wrote it in a form that is not ours."""
    parts = row.decode("utf-8", "replace").split(" ")
    try:
        told, at, _, first, events, sequence, last, _, _ = parts
        return Overrun(
            name.decode("utf-8", "replace"),
            row,
            told == "1",
            moment_of(int(at)),
            first,
            int(events),
            _number(sequence),
            _number(last),
        )
    except (ValueError, OverflowError):
        return None


def _number(text: str) -> int | None:
    return None if text == _UNKNOWN else int(text)
