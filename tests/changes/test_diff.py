"""Laws of :mod:`poller.changes.diff`."""

from __future__ import annotations

from copy import deepcopy
from random import Random
from typing import Any

import pytest
from hypothesis import given

from poller.changes.canonical import canonical, encode, parse
from poller.changes.diff import changed_pointers
from tests.changes.samples import CHANCE, FEW, MANY, OBJECTS, TREES, opinion, spelled

_ABSENT = object()


def leaves(value: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Every place that is reached through objects alone."""
    found = {path: value}
    if isinstance(value, dict):
        for key, inner in value.items():
            found |= leaves(inner, (*path, key))
    return found


def expected(old: Any, new: Any) -> list[str]:
    """The pointers by a second way: flatten both, keep the places that differ and lie below no other difference."""
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
    """The pointers are sorted, each once, and those that flattening both values gives."""
    for left, right in ((old, new), (old, {**old, **new}), (old, {"in": old, **new})):
        one, other = parse(spelled(left)), parse(spelled(right, chance))
        assert list(changed_pointers(one, other)) == expected(one, other)


@MANY
@given(TREES, TREES)
def test_nothing_differs_if_and_only_if_the_canonical_forms_are_equal(old: Any, new: Any) -> None:
    """No pointers and equal canonical forms are the same thing."""
    one, other = spelled(old), spelled(new)
    assert (not changed_pointers(parse(one), parse(other))) == (canonical(one) == canonical(other))


@FEW
@given(OBJECTS, OBJECTS)
def test_the_pointers_are_enough_to_get_from_old_to_new(old: Any, new: Any) -> None:
    """Putting the new parts at the pointers into the old value, and deleting what is gone, gives the new value."""
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
