"""Laws of :mod:`poller.changes.classify`."""

from __future__ import annotations

import sys
from random import Random
from typing import Any

import pytest
from hypothesis import given

from poller.changes.canonical import canonical, parse, without
from poller.changes.classify import Kind, Snapshot, compare
from poller.changes.diff import changed_pointers
from poller.changes.records import Record
from tests.changes.samples import CHANCE, FEW, OBJECTS, spelled


def record_of(raw: bytes) -> Record:
    return Record("k", "K", raw, "2025-01-31T09:30:00Z", None)


def test_an_unknown_record_is_created() -> None:
    """Without a snapshot a record is created: revision 1, nothing before it."""
    change = compare(record_of(b'{"a":1.0}'), None)
    assert change is not None
    assert (change.kind, change.revision, change.previous, change.changed) == (Kind.CREATED, 1, None, ())
    assert (change.key, change.subject, change.modified) == ("k", "K", "2025-01-31T09:30:00Z")
    assert (change.raw, change.canonical) == (b'{"a":1.0}', b'{"a":1}')


def test_a_record_that_returns_is_created_and_goes_on_counting() -> None:
    """After a tombstone even the same bytes are created again, with the next revision and nothing before it."""
    change = compare(record_of(b"{}"), Snapshot(4, 9, b"{}", removed=True))
    assert change is not None
    assert (change.kind, change.revision, change.previous, change.changed) == (Kind.CREATED, 5, None, ())


def test_a_record_kept_silently_has_its_first_event_when_it_changes() -> None:
    """The snapshot of a silent baseline has revision 0; the first change is revision 1, and it is a modification."""
    change = compare(record_of(b'{"a":2}'), Snapshot(0, 0, b'{"a":1}'))
    assert change is not None
    assert (change.kind, change.revision, change.previous) == (Kind.MODIFIED, 1, b'{"a":1}')


@FEW
@given(OBJECTS, OBJECTS, CHANCE)
def test_a_known_record_is_modified_if_and_only_if_it_differs(old: Any, new: Any, chance: Random) -> None:
    """Equal canonical forms are no change; all others are one, with the bytes of both and what differs."""
    before, after = spelled(old), spelled(new, chance)
    assert compare(record_of(spelled(old, chance)), Snapshot(3, 7, before)) is None
    change = compare(record_of(after), Snapshot(3, 7, before))
    assert (change is None) == (canonical(before) == canonical(after))
    if change is not None:
        assert (change.kind, change.revision, change.raw, change.previous) == (Kind.MODIFIED, 4, after, before)
        assert change.changed == changed_pointers(parse(before), parse(after)) != ()


def test_what_is_ignored_does_not_count() -> None:
    """A difference in what the feed ignores is none; beside another one it is not mentioned."""
    strip = without(("/at",))
    snapshot = Snapshot(1, 1, b'{"a":1,"at":1}')
    assert compare(record_of(b'{"a":1,"at":2}'), snapshot, strip) is None
    change = compare(record_of(b'{"a":2,"at":2}'), snapshot, strip)
    assert change is not None
    assert (change.changed, change.canonical, change.raw) == (("/a",), b'{"a":2}', b'{"a":2,"at":2}')


@pytest.mark.parametrize("snapshot", [None, Snapshot(1, 1, b"{}")])
def test_bytes_that_are_no_json_are_refused(snapshot: Snapshot | None) -> None:
    """The reader of records looks at the identity only; what else is wrong is found here."""
    with pytest.raises(ValueError, match="not UTF-8"):
        compare(record_of(b'{"a":"\xff"}'), snapshot)


def test_a_record_at_the_edge_of_depth_is_compared_or_refused() -> None:
    """At any depth the comparison answers or refuses; it never runs out of stack in the middle."""
    refused = 0
    for depth in range(sys.getrecursionlimit() - 120, sys.getrecursionlimit() + 1):
        old, new = (b'{"a":' * depth + value + b"}" * depth for value in (b"1", b"2"))
        try:
            change = compare(record_of(new), Snapshot(1, 1, old))
        except ValueError as error:
            refused += 1
            assert str(error) == "nested too deep"  # noqa: PT017 -- both ends are right; which one, the stack decides
        else:
            assert change is not None
            assert change.changed == ("/a" * depth,)
    assert 0 < refused < 120
