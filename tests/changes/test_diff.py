"""Laws of :mod:`poller.changes.diff`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

import pytest
from hypothesis import given

from poller.changes.canonical import MAX_DEPTH, TOO_DEEP, canonical, encode, parse, without
from poller.changes.diff import ChangeKind, Snapshot, changed_pointers, compare
from poller.changes.records import Record, RecordShape
from tests.changes.samples import CHANCE, FEW, MANY, OBJECTS, TREES, opinion, spelled


def record_of(raw: bytes) -> Record:
    return Record("k", "K", raw, "2025-01-31T09:30:00Z", None)


def test_an_unknown_record_is_created() -> None:
    """A record without a snapshot is created with revision 1 and no previous version."""
    change = compare(record_of(b'{"a":1.0}'), None)
    assert change is not None
    assert (change.kind, change.revision, change.previous, change.changed) == (ChangeKind.CREATED, 1, None, ())
    assert (change.key, change.subject, change.modified) == ("k", "K", "2025-01-31T09:30:00Z")
    assert (change.raw, change.canonical) == (b'{"a":1.0}', b'{"a":1}')


def test_a_record_that_returns_is_created_and_goes_on_counting() -> None:
    """After a tombstone the same bytes are created again, with the next revision and no previous version."""
    change = compare(record_of(b"{}"), Snapshot(4, 9, b"{}", removed=True))
    assert change is not None
    assert (change.kind, change.revision, change.previous, change.changed) == (ChangeKind.CREATED, 5, None, ())


def test_a_record_kept_silently_has_its_first_event_when_it_changes() -> None:
    """The snapshot of a silent baseline has revision 0; the first change is revision 1, and it is a modification."""
    change = compare(record_of(b'{"a":2}'), Snapshot(0, 0, b'{"a":1}'))
    assert change is not None
    assert (change.kind, change.revision, change.previous) == (ChangeKind.MODIFIED, 1, b'{"a":1}')


@FEW
@given(OBJECTS, OBJECTS, CHANCE)
def test_a_known_record_is_modified_if_and_only_if_it_differs(old: Any, new: Any, chance: Random) -> None:
    """Equal canonical forms are no change; different ones are a modification with both versions and the pointers."""
    before, after = spelled(old), spelled(new, chance)
    assert compare(record_of(spelled(old, chance)), Snapshot(3, 7, before)) is None
    change = compare(record_of(after), Snapshot(3, 7, before))
    assert (change is None) == (canonical(before) == canonical(after))
    if change is not None:
        assert (change.kind, change.revision, change.raw, change.previous) == (ChangeKind.MODIFIED, 4, after, before)
        assert change.changed == changed_pointers(parse(before), parse(after)) != ()


@pytest.mark.parametrize("strip", [None, without(("/at",))])
@pytest.mark.parametrize("shape", [None, RecordShape(frozenset({"id", "n"}), None)])
def test_a_truth_value_is_not_a_number(shape: RecordShape | None, strip: Callable[[Any], Any] | None) -> None:
    """1 and true, and 0 and false, differ at any depth on every path of the comparison, unlike in Python."""
    for old, new in ((b"1", b"true"), (b"0", b"false"), (b"[0]", b"[false]"), (b'{"a":1}', b'{"a":true}')):
        for before, after in ((old, new), (new, old)):
            known = Snapshot(1, 1, b'{"id":"k","n":%b}' % before)
            change = compare(record_of(b'{"id":"k","n":%b}' % after), known, strip, shape)
            assert change is not None
            assert (change.kind, change.changed[0][:2]) == (ChangeKind.MODIFIED, "/n")


def test_an_id_in_other_letters_is_no_change_unless_something_else_is() -> None:
    """A UUID id in another case is no change; another field that holds the UUID in another case is."""
    key = "0aa7d5cc-3d2b-4f5e-8a73-0d7d5a1b1b5f"
    known = Snapshot(1, 1, b'{"id":"%b","ref":"%b"}' % (key.encode(), key.encode()))

    def compared(raw: bytes) -> tuple[str, ...] | None:
        change = compare(Record(key, key.upper(), raw, None, None), known)
        return change.changed if change else None

    upper = key.upper().encode()
    assert compared(b'{"id":"%b","ref":"%b"}' % (upper, key.encode())) is None
    assert compared(b'{"id":"%b","ref":"%b"}' % (upper, upper)) == ("/id", "/ref")
    assert compared(b'{"id":"%b","ref":"x"}' % key.encode()) == ("/ref",)


def test_what_is_ignored_does_not_count() -> None:
    """A difference in ignored members alone is no change, and is not listed beside another difference."""
    strip = without(("/at",))
    snapshot = Snapshot(1, 1, b'{"a":1,"at":1}')
    assert compare(record_of(b'{"a":1,"at":2}'), snapshot, strip) is None
    change = compare(record_of(b'{"a":2,"at":2}'), snapshot, strip)
    assert change is not None
    assert (change.changed, change.canonical, change.raw) == (("/a",), b'{"a":2}', b'{"a":2,"at":2}')


@pytest.mark.parametrize("snapshot", [None, Snapshot(1, 1, b"{}")])
def test_bytes_that_are_no_json_are_refused(snapshot: Snapshot | None) -> None:
    """The comparison refuses bytes that are not UTF-8, which the record reader lets through."""
    with pytest.raises(ValueError, match="not UTF-8"):
        compare(record_of(b'{"a":"\xff"}'), snapshot)


@pytest.mark.parametrize("strip", [None, without(("/a",))])
def test_a_key_that_stands_twice_is_refused(strip: Callable[[Any], Any] | None) -> None:
    """A key that occurs twice is refused, ignored or not, because either value may count."""
    for snapshot in (None, Snapshot(1, 1, b'{"a":1}')):
        with pytest.raises(ValueError, match='the key "a" stands twice'):
            compare(record_of(b'{"a":1,"a":1}'), snapshot, strip)


def test_what_is_kept_from_before_is_not_refused() -> None:
    """A snapshot that today's checks would refuse is still compared with."""
    change = compare(record_of(b'{"a":3}'), Snapshot(1, 1, b'{"a":1,"a":2}'))
    assert change is not None
    assert change.changed == ("/a",)


def test_a_record_at_the_edge_of_depth_is_compared_or_refused() -> None:
    """A record is compared up to the depth limit and refused beyond it, however much of the stack is left."""
    depths = [*range(1, MAX_DEPTH + 20), *range(sys.getrecursionlimit() - 120, sys.getrecursionlimit() + 1)]
    refused = 0
    for depth in depths:
        old, new = (b'{"a":' * depth + value + b"}" * depth for value in (b"1", b"2"))
        try:
            change = compare(record_of(new), Snapshot(1, 1, old))
        except ValueError as error:
            refused += 1
            assert str(error) == TOO_DEEP  # noqa: PT017 -- see the count
        else:
            assert change is not None
            assert change.changed == ("/a" * depth,)
    assert refused == len(depths) - MAX_DEPTH


# Laws of :mod:`poller.changes.diff`.

_ABSENT = object()


def leaves(value: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Every value that is reached through objects alone, by its path."""
    found = {path: value}
    if isinstance(value, dict):
        for key, inner in value.items():
            found |= leaves(inner, (*path, key))
    return found


def expected(old: Any, new: Any) -> list[str]:
    """The pointers by a reference implementation: flatten both, keep the outermost paths that differ."""
    one, other = leaves(old), leaves(new)

    def differs(path: tuple[str, ...]) -> bool:
        left, right = one.get(path, _ABSENT), other.get(path, _ABSENT)
        if left is _ABSENT or right is _ABSENT:
            return left is not right
        if isinstance(left, dict) and isinstance(right, dict):
            return False
        return opinion(encode(left)) != opinion(encode(right))

    places = {path for path in one | other if differs(path)}
    roots = [path for path in places if not any(path[:length] in places for length in range(len(path)))]
    return sorted("".join("/" + key.replace("~", "~0").replace("/", "~1") for key in path) for path in roots)


def resolve(value: Any, pointer: str) -> Any:
    for token in pointer.split("/")[1:]:
        key = token.replace("~1", "/").replace("~0", "~")
        if not isinstance(value, dict) or key not in value:
            return _ABSENT
        value = value[key]
    return value


def applied(old: Any, new: Any, pointers: tuple[str, ...]) -> Any:
    """The old value with the new one's parts at the pointers."""
    result = deepcopy(old)
    for pointer in pointers:
        part = resolve(new, pointer)
        if pointer == "":
            return part
        parent, _, last = pointer.rpartition("/")
        key = last.replace("~1", "/").replace("~0", "~")
        if part is _ABSENT:
            del resolve(result, parent)[key]
        else:
            resolve(result, parent)[key] = part
    return result


@FEW
@given(OBJECTS, OBJECTS, CHANCE)
def test_pointers_are_those_of_a_second_way(old: Any, new: Any, chance: Random) -> None:
    """The pointers are sorted, unique, and the same as those from flattening both values."""
    for left, right in ((old, new), (old, {**old, **new}), (old, {"in": old, **new})):
        one, other = parse(spelled(left)), parse(spelled(right, chance))
        assert list(changed_pointers(one, other)) == expected(one, other)


@MANY
@given(TREES, TREES)
def test_nothing_differs_if_and_only_if_the_canonical_forms_are_equal(old: Any, new: Any) -> None:
    """There are no pointers if and only if the canonical forms are equal."""
    one, other = spelled(old), spelled(new)
    assert (not changed_pointers(parse(one), parse(other))) == (canonical(one) == canonical(other))


@FEW
@given(OBJECTS, OBJECTS)
def test_the_pointers_are_enough_to_get_from_old_to_new(old: Any, new: Any) -> None:
    """Copying the new parts at the pointers into the old value, and deleting the missing ones, gives the new value."""
    for left, right in ((old, new), ({"a": old}, {"a": {**old, **new}}), (old, {})):
        one, other = parse(spelled(left)), parse(spelled(right))
        assert encode(applied(one, other, changed_pointers(one, other))) == encode(other)


@pytest.mark.parametrize(
    ("old", "new", "pointers"),
    [
        (b'{"a/b":1,"~":1,"~1":1,"":1}', b'{"a/b":2,"~":2,"~1":2,"":2}', ("/", "/a~1b", "/~0", "/~01")),
        (b'{"list":[{"a":1},2]}', b'{"list":[{"a":2},2]}', ("/list",)),
        (b'{"a":{"b":{"c":1,"d":1}}}', b'{"a":{"b":{"c":1.0,"d":2}}}', ("/a/b/d",)),
        (b'{"a":{"b":1}}', b'{"a":[]}', ("/a",)),
        (b'{"a":null}', b"{}", ("/a",)),
        (b'{"a":true}', b'{"a":1}', ("/a",)),
        (b'{"a":{}}', b'{"a":{"b":null}}', ("/a/b",)),
        (b"[]", b"{}", ("",)),
        (b'{"b":1,"a":1,"B":1}', b"{}", ("/B", "/a", "/b")),
    ],
)
def test_pointers_follow_rfc_6901(old: bytes, new: bytes, pointers: tuple[str, ...]) -> None:
    """Slash and tilde are escaped, arrays count as a whole, the empty pointer is the whole value, all sorted."""
    assert changed_pointers(parse(old), parse(new)) == pointers


def test_pointers_that_would_take_too_much_are_those_of_the_members() -> None:
    """Where full pointers would take a gigabyte, the changed top-level members are named instead."""
    key = "/" * 50_000
    old = {"id": "a", "same": {"x": 1}, key: {f"k{number}": 0 for number in range(20_000)}}
    new = old | {key: {f"k{number}": 1 for number in range(20_000)}, "new": 1}
    assert changed_pointers(old, new) == tuple(sorted(["/" + "~1" * 50_000, "/new"]))
    assert changed_pointers(old, old) == ()
    few = {"id": "a", key: {"k1": 1}}
    assert changed_pointers(few, few | {key: {"k1": 2}}) == (f"/{'~1' * 50_000}/k1",)
