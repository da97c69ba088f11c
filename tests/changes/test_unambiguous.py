"""Laws of :mod:`poller.changes.unambiguous`."""

from __future__ import annotations

import json
from contextlib import nullcontext
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.changes.canonical import encode, parse, parse_received
from poller.changes.unambiguous import MAX_DEPTH, TOO_DEEP, deeper_than, own_members, refuse_ambiguous
from tests.changes.samples import CHANCE, FEW, KEYS, MANY, TREES, spelled

COLONS = st.sampled_from([r"\u003a", r"\u003A", r"\":", ":", r"\\u003a", "b", ""])
TEXTS = st.lists(COLONS, max_size=2).map(lambda parts: '"' + "".join(parts) + '"')
VALUES = st.one_of(TEXTS, st.sampled_from(["1", "1.0", "1e1", "1e-7", "12345678901234567890123", "0.10"]))
# JSON texts in which keys repeat, escapes hide colons, and numbers are longer or shorter in their canonical form.
OBJECTS: st.SearchStrategy[str] = st.recursive(
    VALUES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2).map(lambda items: f"[{' ,'.join(items)}]"),
        st.lists(st.tuples(TEXTS, inner), max_size=4).map(
            lambda members: "{" + ", ".join(f"{key} :{value}" for key, value in members) + "}"
        ),
    ),
    max_leaves=8,
)


def twice(text: str) -> bool:
    """Whether any key stands twice, the plain way."""
    found = False

    def look(pairs: list[tuple[str, Any]]) -> None:
        nonlocal found
        found = found or len({key for key, _ in pairs}) < len(pairs)

    json.loads(text, object_pairs_hook=look)
    return found


@MANY
@given(OBJECTS)
def test_a_text_is_refused_if_and_only_if_a_key_stands_twice(text: str) -> None:
    """At any depth, whatever else in it is spelled otherwise than in its canonical form."""
    with pytest.raises(ValueError, match="stands twice") if twice(text) else nullcontext():
        parse_received(text.encode())


@FEW
@given(TREES, CHANCE)
def test_what_is_sound_has_its_value(tree: Any, chance: Random) -> None:
    """What passes is the value and the canonical form that it has without the check."""
    raw = spelled(tree, chance)
    value, form = parse_received(raw)
    assert form == encode(value) == encode(parse(raw))


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        (b'{"name":1,"name":1}', '"name"'),
        (b'{"a":[{"b":{"c":1,"d":2,"c":3}}]}', '"c"'),
        (rb'{"\u00e9":1,"x":"\u003a","' + "é".encode() + b'":2}', r'"\u00e9"'),
        (b'{"a":{"a:a":1},"a":1e-30}', '"a"'),
        (rb'{"a\u003a":1,"a:":1}', '"a:"'),
        (b'{"":1,"":{}}', '""'),
        (b'{"%b":1,"%b":1}' % (b"k" * 1000, b"k" * 1000), '"' + "k" * 60 + '"'),
        (b'{"a":%b,"a":1}' % (b"7" * 5_000), '"a"'),
    ],
)
def test_the_reason_names_the_key(raw: bytes, key: str) -> None:
    """In one short line that can be printed, whatever the key."""
    with pytest.raises(ValueError, match="twice") as refused:
        parse_received(raw)
    assert str(refused.value) == f"the key {key} stands twice"
    assert str(refused.value).isascii()
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(("begin", "end"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"]":', b"}]"), (b'["[{\\"",', b"]")])
def test_the_limit_itself_is_within_the_limit(begin: bytes, end: bytes) -> None:
    """So many levels pass and one more does not; brackets within strings are none."""
    wide = begin.count(b"[") + begin.count(b"{") - begin.count(b'"[{') * 2
    times = MAX_DEPTH // wide
    fits = begin * times + b"1" + end * times
    parse_received(b'"%b"' % (b"[" * 500))
    parse_received(fits)
    with pytest.raises(ValueError, match=f"^{TOO_DEEP}$"):
        parse_received(b"[%b]" % fits)


@MANY
@given(TREES, st.integers(0, 4))
def test_depth_is_that_of_the_value(tree: Any, levels: int) -> None:
    """Of any value: as deep as its containers stand within each other."""

    def depth(value: Any) -> int:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
        return 0 if inner is None else 1 + max(map(depth, inner), default=0)

    assert deeper_than(spelled(tree), levels) == (depth(tree) > levels)


@MANY
@given(st.lists(st.tuples(KEYS | st.just("a:b"), TREES), max_size=5), CHANCE)
def test_own_members_are_told_apart(members: list[tuple[str, Any]], chance: Random) -> None:
    """Each value is the bytes it stands in, and exactly the keys that stand twice are named."""
    raw = b"{%b}" % b",".join(b"%b :%b" % (spelled(key, chance), spelled(value, chance)) for key, value in members)
    found, repeated = own_members(raw)
    keys = [key for key, _ in members]
    assert repeated == {key for key in keys if keys.count(key) > 1}
    assert {key: parse(value) for key, value in found.items()} == {key: parse(spelled(value)) for key, value in members}


def test_many_keys_are_not_depth() -> None:
    """More brackets and colons than there may be levels, side by side."""
    parse_received(b'{"a":[' + b",".join([b'{"b":[{"c":"[{"}]}'] * 200) + b"]}")


def test_any_form_that_hides_no_colon_will_do() -> None:
    """The check counts colons; in which order or spelling the value was written again is all the same."""
    refuse_ambiguous(b'{"b":1.0, "a":":"}', b'{ "a" : ":" , "b" : 1 }')
