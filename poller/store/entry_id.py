"""The id of a stream's entry, ``MILLISECONDS-NUMBER``, as one value.

Pure.

**Invariants**

- Ids are compared as pairs of numbers, never as text.
- Nothing lies between an id and the one before it, nor between it and the one following it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

_LARGEST: Final = 2**64 - 1
_DIGITS: Final = len(str(_LARGEST))


class EntryId(NamedTuple):
    """The id of an entry: milliseconds since 1970, and a number within that millisecond."""

    ms: int
    n: int = 0

    @classmethod
    def parse(cls, text: str | bytes) -> EntryId:
        """The id from what the store answers; a missing number is 0.

        Raises:
            ValueError: it is no id.
        """
        ms, _, n = (text if isinstance(text, str) else text.decode()).partition("-")
        return cls(int(ms), int(n or 0))

    @classmethod
    def checked(cls, text: str) -> EntryId:
        """The id from what a person or a client wrote.

        Raises:
            ValueError: it is no id that an entry may have.
        """
        ms, dash, n = text.partition("-")
        if not all(one.isascii() and one.isdecimal() and len(one) <= _DIGITS for one in (ms, n if dash else "0")):
            raise ValueError("not an entry's id")
        found = cls(int(ms), int(n or 0))
        if max(found) > _LARGEST:
            raise ValueError("not an entry's id")
        return found

    @property
    def before(self) -> EntryId:
        """The id just before this one; the first is its own."""
        if self.n:
            return EntryId(self.ms, self.n - 1)
        return EntryId(self.ms - 1, _LARGEST) if self.ms else self

    @property
    def following(self) -> EntryId:
        """The id just after this one; the last is its own."""
        if self.n < _LARGEST:
            return EntryId(self.ms, self.n + 1)
        return EntryId(self.ms + 1, 0) if self.ms < _LARGEST else self

    def __str__(self) -> str:
        """As the store writes it."""
        return f"{self.ms}-{self.n}"


FIRST_ID: Final = EntryId(0, 0)
"""Before every entry: no entry has it."""

LAST_ID: Final = EntryId(_LARGEST, _LARGEST)

EARLIEST: Final = str(FIRST_ID)
"""The text after which a reader reads all that a stream holds."""


def before(entry: str) -> str:
    """The text of the id just before this one."""
    return str(EntryId.parse(entry).before)
