"""One listing: the records of a list in the order of their latest change.

*Theory of operation.* A listing is an append-only log of versions. A record's new version goes to the end and its old
place is struck out, so the log's live rows are always each record once, ordered by version number. A reader's place is
the number of the last version it saw: whatever changes behind its back lands in front of it, and nothing that it has
not seen can slip behind it.

Struck rows are dropped when they outnumber the live ones. Places survive that, for they are numbers and not indexes.

It does not know: what a record is, which record a row belongs to, tokens.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import msgspec

if TYPE_CHECKING:
    from random import Random


class Numbered(Protocol):
    """Anything with a place in the order."""

    @property
    def number(self) -> int:
        """Its version number, unique and rising."""


Row = TypeVar("Row", bound=Numbered)

_FEW = 64
"""Struck rows below this are not worth a compaction."""


class Page(msgspec.Struct, Generic[Row], frozen=True):
    """Some consecutive rows.

    Attributes:
        rows: at most as many as asked for, in order.
        more: whether there are live rows after them.
    """

    rows: list[Row]
    more: bool


class Listing(Generic[Row]):
    """The log of one list. Appending and striking cost O(log n), a page O(its length)."""

    __slots__ = ("_numbers", "_rows", "_struck")

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._rows: list[Row | None] = []
        self._struck = 0

    def __len__(self) -> int:
        return len(self._rows) - self._struck

    def append(self, row: Row) -> None:
        """Put a row at the end; its number must be the highest so far."""
        self._numbers.append(row.number)
        self._rows.append(row)

    def strike(self, row: Row) -> None:
        """Take out a row that is in the listing: superseded, or its record removed."""
        self._rows[bisect_left(self._numbers, row.number)] = None
        self._struck += 1
        if self._struck > _FEW and self._struck * 2 > len(self._rows):
            self._compact()

    def page(self, *, after: int, limit: int) -> Page[Row]:
        """At most ``limit`` rows whose number is above ``after``."""
        start = bisect_right(self._numbers, after)
        rows: list[Row] = []
        # One row more than asked for tells whether this page is the last.
        while len(rows) <= limit and start < len(self._rows):
            stretch = self._rows[start : start + limit + 1 - len(rows)]
            rows += [row for row in stretch if row is not None]
            start += len(stretch)
        return Page(rows[:limit], more=len(rows) > limit)

    def pick(self, rng: Random) -> Row | None:
        """Any live row, each equally likely; None from an empty listing."""
        if not len(self):
            return None
        row = None
        while row is None:  # compaction keeps the struck rows few, so this ends soon
            row = rng.choice(self._rows)
        return row

    def _compact(self) -> None:
        self._rows = [row for row in self._rows if row is not None]
        self._numbers = [row.number for row in self._rows if row is not None]
        self._struck = 0
