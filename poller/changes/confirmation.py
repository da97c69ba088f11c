"""Whether a reading of several pages has missed records, and for how long the listing is therefore read again.

Theory of operation
-------------------
Where an API pages by offset, each record that is inserted or removed while a listing is read moves all those behind it
by one place. A record that moves over the edge of a page in that moment stands on no page of the reading, and as it did
not change itself, no delta brings it. So a listing of several pages is read in full again at its next turns until one
of these readings brings no record late: none that neither the readings before nor a delta had brought. A listing that
keeps moving would be read for ever: after :data:`MOST` readings it is left to the next regular one, and what came late
is told. A reading that takes longer than a round may counts as one of them: the next one would not end either.

A listing of one page has no edge. Whatever it has, it is read again in the same way after a reading, or a delta, that
held an element which may be several records in one (:func:`poller.changes.records.is_single`): these were not read.

Pure.
"""

from __future__ import annotations

from typing import Final

import msgspec

MOST: Final = 5
"""Readings that may follow one of several pages."""


class Confirmation(msgspec.Struct, frozen=True, array_like=True):
    """A listing that is being confirmed, or was given up after :data:`MOST` readings.

    Attributes:
        readings: how many have followed the first one, each of which brought records late, could not tell, or
            took longer than a round may.
        late: how many records these brought late.
        listings: of how many listings that is the sum, for a feed that has many.
    """

    readings: int = 0
    late: int = 0
    listings: int = 1

    @property
    def due(self) -> bool:
        """Whether another reading is to follow."""
        return self.readings < MOST

    def after(self, late: int | None) -> Confirmation | None:
        """What is left to be confirmed after another reading; None: nothing.

        Args:
            late: how many records it brought late; None where that cannot be told.
        """
        if late == 0:
            return None
        return msgspec.structs.replace(self, readings=self.readings + 1, late=self.late + (late or 0))


def after_reading(
    before: Confirmation | None, *, pages: int, confirming: bool, late: int | None, jumbled: bool = False
) -> Confirmation | None:
    """What is to be confirmed after a complete reading of a listing; None: nothing.

    Args:
        before: what was to be confirmed before it.
        pages: how many the listing had.
        confirming: whether the reading continues those before it; False: it begins.
        late: how many records it brought late; None where that cannot be told.
        jumbled: whether records in it could not be told apart.
    """
    if pages <= 1 and not jumbled:
        return None
    if jumbled and late == 0:
        late = None
    return before.after(late) if confirming and before is not None and before.due else Confirmation()


def after_jumbled_delta(before: Confirmation | None) -> Confirmation:
    """What is to be confirmed after a delta whose records could not all be told apart: one reading at least."""
    if before is None or before.due:
        return before or Confirmation()
    return msgspec.structs.replace(before, readings=MOST - 1)


def confirmation_of(text: str | None) -> Confirmation | None:
    """What an earlier round has left in the feed's state; None where another version wrote it."""
    try:
        return msgspec.json.decode(text, type=Confirmation) if text else None
    except msgspec.MsgspecError:
        return None


def confirmation_mark(confirmation: Confirmation | None) -> str | None:
    """What :func:`confirmation_of` gives back."""
    return None if confirmation is None else msgspec.json.encode(confirmation).decode()
