"""Compares a record with its snapshot: no change, created, modified or removed.

**Invariants**

- Objects are compared key by key, at all depths; arrays as a whole, so a JSON pointer (RFC 6901) never holds an
  array's index.
- Numbers that are equal as numbers do not differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, Final

import msgspec

from poller.changes.canonical import encode, parse, parse_received, same
from poller.changes.records import Record, RecordShape, Rejected


class ChangeKind(StrEnum):
    """What happened to a record."""

    CREATED = "created"
    MODIFIED = "modified"
    REMOVED = "removed"


EVERYTHING: Final = ("",)
"""As the pointers that differ: the whole record, for nothing is known of what it was."""

_LOST: Final = object()


class Snapshot(msgspec.Struct, frozen=True, gc=False):
    """What is stored of a record as last seen.

    Attributes:
        revision: of its last event (0: a silent baseline published none).
        sequence: of its last event (0: likewise).
        raw: its bytes as last published; of a removed record, as last seen before, or empty once they are not kept.
        removed: whether it is a tombstone, which keeps the revision for a record that returns.
        missing: whether the last full reading did not hold it and nothing else could confirm that it is gone.
        unreadable: why it cannot be read; ``raw`` is then what the store holds instead of a record.
        changed_at: when the change was noticed that was its last one, seconds since 1970; 0: unknown.
    """

    revision: int
    sequence: int
    raw: bytes
    removed: bool = False
    missing: bool = False
    unreadable: str = ""
    changed_at: int = 0


class Change(msgspec.Struct, frozen=True, gc=False):
    """One record against its snapshot, before it is an event.

    Attributes:
        key, subject, modified: as of :class:`~poller.changes.records.Record`.
        raw: the record's bytes; None where it was removed.
        canonical: its canonical form; empty where it was removed.
        previous: the bytes last published; None where there were none, or where they cannot be read any more.
        changed: the JSON pointers that differ; empty unless modified.
        revision: 1 for the first event of a key, then 2, 3 …
    """

    kind: ChangeKind
    key: str
    subject: str
    modified: str | None
    raw: bytes | None
    canonical: bytes
    previous: bytes | None
    changed: tuple[str, ...]
    revision: int


def compare(
    record: Record,
    snapshot: Snapshot | None,
    strip: Callable[[Any], Any] | None = None,
    shape: RecordShape | None = None,
) -> Change | None:
    """Compare a record with its snapshot; None: nothing that counts differs.

    Args:
        record: as received.
        snapshot: what is known of it.
        strip: removes what never counts; None: all counts.
        shape: which fields are requested, if not all.

    Raises:
        ValueError: the record's bytes are no usable JSON; the text says why.
    """
    if snapshot is not None and not snapshot.removed and snapshot.raw == record.raw:
        return None  # the common case, decided without reading either
    value, content = parse_received(record.raw)
    if strip:
        value = strip(value)
        content = encode(value)
    revision = snapshot.revision + 1 if snapshot else 1
    if snapshot is None or snapshot.removed:
        return Change(
            ChangeKind.CREATED, record.key, record.subject, record.modified, record.raw, content, None, (), revision
        )
    before = _known(snapshot)
    changed = EVERYTHING if before is _LOST else _changed(record, before, value, content, strip=strip, shape=shape)
    if not changed:
        return None
    previous = None if before is _LOST else snapshot.raw
    return Change(
        ChangeKind.MODIFIED,
        record.key,
        record.subject,
        record.modified,
        record.raw,
        content,
        previous,
        changed,
        revision,
    )


def _changed(
    record: Record,
    before: Any,
    value: Any,
    content: bytes,
    *,
    strip: Callable[[Any], Any] | None,
    shape: RecordShape | None,
) -> tuple[str, ...]:
    before = strip(before) if strip else before
    if shape is None:
        same = encode(before) == content
    else:
        before, value = shape.counted(before, value)
        same = encode(before) == encode(value)
    if same:
        return ()
    changed = changed_pointers(before, value)
    return () if len(changed) == 1 and _same_identity(changed[0], before, value, record) else changed


def _known(snapshot: Snapshot) -> Any:
    try:
        return _LOST if snapshot.unreadable else parse(snapshot.raw)
    except ValueError:
        return _LOST


def checked(snapshot: Snapshot) -> Snapshot:
    """The same, marked as unreadable if its bytes are no JSON."""
    if snapshot.unreadable or snapshot.removed or _known(snapshot) is not _LOST:
        return snapshot
    return msgspec.structs.replace(snapshot, missing=False, unreadable="not JSON")


def lost_snapshot(snapshot: Snapshot) -> Rejected:
    """The quarantine entry for what the store holds instead of a record."""
    reason = f"snapshot of revision {snapshot.revision} cannot be read: {snapshot.unreadable or 'not JSON'}"
    return Rejected(snapshot.raw, reason, is_snapshot=True)


def _same_identity(pointer: str, before: Any, value: Any, record: Record) -> bool:
    """Whether only the case of letters in the record's id differs."""
    name = pointer[1:]
    texts = [one.get(name) if isinstance(one, dict) else None for one in (before, value)]
    return texts[1] == record.subject and all(isinstance(text, str) and text.lower() == record.key for text in texts)


MOST_CHARACTERS: Final = 1_000_000
"""Of the pointers of one change. Each repeats the keys above it: those of a record of 1 MB may take gigabytes."""


def changed_pointers(old: Any, new: Any) -> tuple[str, ...]:
    """The sorted pointers of all differences between two parsed values.

    Empty if and only if the two have the same canonical form. The empty pointer ``""`` stands for the whole value if
    one of the two is not an object.
    """
    pointers: list[str] = []
    length = 0
    for path in _differing(old, new, ()):
        pointers.append(_pointer(path))
        length += len(pointers[-1])
        if length > MOST_CHARACTERS:
            return tuple(sorted(_pointer((key,)) for key in old.keys() | new.keys() if _differs(old, new, key)))
    return tuple(sorted(pointers))


def _differing(old: Any, new: Any, at: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if not (isinstance(old, dict) and isinstance(new, dict)):
        if not same(old, new):
            yield at
        return
    for key in old.keys() | new.keys():
        if isinstance(old.get(key), dict) and isinstance(new.get(key), dict):
            yield from _differing(old[key], new[key], (*at, key))
        elif _differs(old, new, key):  # not by a generator of its own: most values are no objects, and the same
            yield (*at, key)


def _differs(old: dict[str, Any], new: dict[str, Any], key: str) -> bool:
    return key not in old or key not in new or not same(old[key], new[key])


def _pointer(path: tuple[str, ...]) -> str:
    return "".join([f"/{_escape(key)}" for key in path])


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
