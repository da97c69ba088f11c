"""Which events ``poller tail`` shows: by type, by record, by what has changed.

Law: what is given of one kind is an alternative, and of each kind one must hold. Case counts. What is no event is not
passed over but shown for what it is, for nobody can say what it would have been.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

import msgspec

from poller.config.event_types import type_test

SHOWN_OF_SUBJECT: Final = 8
"""So many characters of a record's id stand in a line for people."""


class _Content(msgspec.Struct, frozen=True):
    changed: tuple[str, ...] = ()


class _Outline(msgspec.Struct, frozen=True):
    type: str
    subject: str = ""
    data: _Content = _Content()


class Choice(msgspec.Struct, frozen=True):
    """What is wanted; nothing given: all.

    Attributes:
        types: as :mod:`poller.config.event_types` reads them.
        subjects: ids of records, patterns of them, or how they begin, in eight characters at least: so ``tail`` shows
            them.
        changed: JSON pointers; one is met by a change at it or below it.
    """

    types: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def __str__(self) -> str:
        """In words, as the end of a sentence about events; empty where all are wanted."""
        kinds = (("of type", self.types), ("of record", self.subjects), ("that change", self.changed))
        return "".join(f" {words} {' or '.join(given)}" for words, given in kinds if given)

    def takes(self, event: bytes) -> bool:
        """Whether it is wanted."""
        if not (self.types or self.subjects or self.changed):
            return True
        try:
            outline = msgspec.json.decode(event, type=_Outline)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return True
        return (
            (not self.types or _test_of(self.types)(outline.type))
            and (not self.subjects or any(_is_of(outline.subject, wanted) for wanted in self.subjects))
            and (not self.changed or any(_below(one, top) for one in outline.data.changed for top in self.changed))
        )


@lru_cache(maxsize=8)
def _test_of(types: tuple[str, ...]) -> Callable[[str], bool]:
    return type_test(types)


def _is_of(subject: str, wanted: str) -> bool:
    begins = len(wanted) >= SHOWN_OF_SUBJECT and subject.startswith(wanted)
    return begins or fnmatchcase(subject, wanted)


def _below(pointer: str, top: str) -> bool:
    top = "/" + top.strip("/")
    return pointer == top or pointer.startswith(f"{top}/")
