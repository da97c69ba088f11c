"""Laws of :mod:`poller.changes.canonical`."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given

from poller.changes.canonical import canonical, parse, same, without
from poller.changes.unambiguous import TOO_DEEP
from tests.changes.samples import CHANCE, FEW, MANY, TREES, opinion, spelled

LONG = b"7" * 5_000  # more digits than the fast way holds


@MANY
@given(TREES, CHANCE)
def test_spelling_does_not_count(tree: Any, chance: Random) -> None:
    """Key order, white space, escapes and the spelling of numbers leave the canonical form as it is."""
    assert canonical(spelled(tree, chance)) == canonical(spelled(tree))


@MANY
@given(TREES, TREES)
def test_equality_is_that_of_exact_fractions(left: Any, right: Any) -> None:
    """Two texts share a canonical form if and only if the standard library and exact fractions call them equal."""
    one, other = spelled(left), spelled(right)
    assert (canonical(one) == canonical(other)) == (opinion(one) == opinion(other))
    assert same(parse(one), parse(other)) == (opinion(one) == opinion(other))


@MANY
@given(TREES)
def test_the_canonical_form_is_its_own(tree: Any) -> None:
    """Taking the canonical form twice is taking it once, and it means what the text meant."""
    form = canonical(spelled(tree))
    assert canonical(form) == form
    assert opinion(form) == opinion(spelled(tree))


@FEW
@given(TREES, TREES, CHANCE)
def test_the_slow_way_agrees_with_the_fast_one(left: Any, right: Any, chance: Random) -> None:
    """Beside an integer that only the slow way can read, all other values are what they are without it."""
    one, other = spelled(left, chance), spelled(right)
    slow = [canonical(b"[%b,%b]" % (LONG, text)) for text in (one, other)]
    assert slow[0] == b"[%b,%b]" % (LONG, canonical(one))
    assert (slow[0] == slow[1]) == (canonical(one) == canonical(other))


@pytest.mark.parametrize(
    "spellings",
    [
        (b"1", b"1.0", b"1e0", b"10e-1", b"0.1e1", b"1.000"),
        (b"0", b"-0", b"0.0", b"-0.0", b"0e7"),
        (b"1e400", b"10e399", b"1" + b"0" * 400, b"0.1e401"),
        (b"1e4299", b"1" + b"0" * 4299),
        (b"1e4300", b"1" + b"0" * 4300, b"10.0e4299"),
        (LONG, LONG + b".0", LONG + b"0e-1"),
        (b"-" + LONG, b"-" + LONG + b".00"),
        (b"0.1", b"0.10", b"1e-1", b"0.01e1"),
    ],
    ids=lambda spellings: spellings[0][:8].decode(),
)
def test_a_number_has_one_form(spellings: tuple[bytes, ...]) -> None:
    """All spellings of one number, of any size, share one canonical form."""
    assert len({canonical(spelling) for spelling in spellings}) == 1


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (b"0.1", b"0.1000000000000000000001"),
        (b"123456789012345678901234567890", b"123456789012345678901234567891"),
        (LONG + b"1", LONG + b"2"),
        (b"9007199254740993.0", b"9007199254740992.0"),
        (b"1e400", b"1e401"),
        (b"1e400", b"1.0000000000000000000000000000001e400"),
        (b"1e-400", b"0"),
        (b"true", b"1"),
        (b"false", b"0"),
        (b"null", b"false"),
        (b'"1"', b"1"),
        (b'{"a":null}', b"{}"),
        (b"[1,2]", b"[2,1]"),
        (b"[]", b"{}"),
        (b'"\\u00e9"', b'"e\\u0301"'),
    ],
    ids=lambda text: text[:12].decode(),
)
def test_what_differs_stays_apart(left: bytes, right: bytes) -> None:
    """Numbers beyond floats, true and 1, null and absent, the order of arrays, the code points of text all count."""
    assert canonical(left) != canonical(right)
    assert not same(parse(left), parse(right))


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"NaN", "not JSON"),
        (b"[-Infinity]", "not JSON"),
        (b"[1,]", "not JSON"),
        (b"01", "not JSON"),
        (b"", "not JSON"),
        (b"1 2", "not JSON"),
        (b"\xef\xbb\xbf1", "not JSON"),
        (b'"\\ud800"', "not JSON"),
        (b'{"\\udfff":1}', "not JSON"),
        (b'"\x01"', "not JSON"),
        (b'"\xff"', "not UTF-8"),
        (b'"\xed\xa0\x80"', "not UTF-8"),
        (b'{"k\xff":1}', "not UTF-8"),
        (b"[" * 100_000 + b"]" * 100_000, TOO_DEEP),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, TOO_DEEP),
        (b"1e99999999999999999999", "a number is out of any range"),
        (b"1e-99999999999999999999", "a number is out of any range"),
    ],
    ids=lambda value: repr(value[:16]),
)
@pytest.mark.parametrize("way", ["fast", "slow"])
def test_what_is_not_json_is_refused(raw: bytes, reason: str, way: str) -> None:
    """What is not JSON is a ValueError that says why in words of ours, whichever way it is read."""
    text = raw if way == "fast" else b"[%b,%b]" % (LONG, raw)
    with pytest.raises(ValueError, match=f"^{reason}") as refused:
        parse(text)
    assert type(refused.value) is ValueError


@pytest.mark.parametrize(
    ("pointers", "left"),
    [
        (("/lastModifiedAt",), b'{"a":{"b":1,"c":[{"b":1}]},"x/y":2,"~":3}'),
        (("/a/b",), b'{"a":{"c":[{"b":1}]},"x/y":2,"~":3,"lastModifiedAt":0}'),
        (("/x~1y", "/~0"), b'{"a":{"b":1,"c":[{"b":1}]},"lastModifiedAt":0}'),
        (("/a/c/0/b", "/nothing", "/lastModifiedAt/deeper", "/a/b/deeper"), None),
        (("/a/b", "/a"), b'{"x/y":2,"~":3,"lastModifiedAt":0}'),
        (("/~01",), None),
        ((), None),
    ],
)
def test_ignored_pointers_are_left_out(pointers: tuple[str, ...], left: bytes | None) -> None:
    """Exactly what the pointers name is left out, never inside arrays, and the value given stays as it was."""
    raw = b'{"a":{"b":1,"c":[{"b":1}]},"x/y":2,"~":3,"lastModifiedAt":0}'
    value = parse(raw)
    assert same(without(pointers)(value), parse(left or raw))
    assert same(value, parse(raw))


def test_escapes_are_undone_in_the_order_of_rfc_6901() -> None:
    """``~01`` is the key ``~1`` and never a slash."""
    assert same(without(("/~01",))(parse(b'{"~1":1,"/":2}')), parse(b'{"/":2}'))
