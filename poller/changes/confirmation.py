"""Confirms full readings of several pages, which may have missed records.

Theory of operation
-------------------
If an API pages by offset, each insertion or removal while a listing is read moves all records behind it by one place.
A record that moves over the edge of a page in that moment is on no page of the reading, and as it did not change
itself, no delta brings it. So a listing of several pages is read in full again at its next turns, until one of these
readings brings no record late: none that neither an earlier reading nor a delta had brought.

**Invariants**

- After :data:`MOST` readings the listing waits for the next regular one, and the number of late records is reported.
  A reading that takes longer than a round may counts as one of them.
- A listing of one page has no edge. It is read again only after a reading, or a delta, that held an element which may
  be several records in one (:func:`poller.changes.records.is_single`), or after a reading whose missing records are not
  removed yet: because a second reading decides, or because the API may have lost them for a short time.
- Pure.
"""

from __future__ import annotations

from typing import Final

import msgspec

MOST: Final = 5
"""Readings that may follow one of several pages."""


class Confirmation(msgspec.Struct, frozen=True, array_like=True):
    """The confirmation of a listing: open, or given up after :data:`MOST` readings.

    Attributes:
        readings: how many have followed the first one, each of which brought records late, was undecided, or took
            longer than a round may.
        late: how many records these brought late.
        listings: the number of listings in the sum, for a feed that has many.
    """

    readings: int = 0
    late: int = 0
    listings: int = 1

    @property
    def due(self) -> bool:
        """Whether another reading follows."""
        return self.readings < MOST

    def after(self, late: int | None) -> Confirmation | None:
        """What is left to be confirmed after another reading; None: nothing.

        Args:
            late: how many records it brought late; None: unknown.
        """
        if late == 0:
            return None
        return msgspec.structs.replace(self, readings=self.readings + 1, late=self.late + (late or 0))


def after_reading(
    before: Confirmation | None, *, pages: int, confirming: bool, late: int | None, doubtful: bool = False
) -> Confirmation | None:
    """What is left to be confirmed after a complete reading; None: nothing.

    Args:
        before: what was to be confirmed before it.
        pages: how many the listing had.
        confirming: whether the reading continues those before it; False: it is the first.
        late: how many records it brought late; None: unknown.
        doubtful: whether some of its records could not be distinguished, or some were missing and were not removed.
    """
    if pages <= 1 and not doubtful:
        return None
    if doubtful and late == 0:
        late = None
    return before.after(late) if confirming and before is not None and before.due else Confirmation()


def after_doubtful_delta(before: Confirmation | None) -> Confirmation:
    """What is left to be confirmed after a delta whose records could not be distinguished, or are known only in part.

    At least one reading follows.
    """
    if before is None or before.due:
        return before or Confirmation()
    return msgspec.structs.replace(before, readings=MOST - 1)


def confirmation_of(text: str | None) -> Confirmation | None:
    """Decode the confirmation in the feed's state; None: unknown version."""
    try:
        return msgspec.json.decode(text, type=Confirmation) if text else None
    except msgspec.MsgspecError:
        return None


def confirmation_mark(confirmation: Confirmation | None) -> str | None:
    """What :func:`confirmation_of` gives back."""
    return None if confirmation is None else msgspec.json.encode(confirmation).decode()
