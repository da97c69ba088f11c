"""Random JSON values, their spellings, and an independent reading of them."""

from __future__ import annotations

import json
from fractions import Fraction
from random import Random
from typing import Any, Final

from hypothesis import settings
from hypothesis import strategies as st

# No deadline: a slow example on a busy machine is not a failure.
FEW: Final = settings(max_examples=settings().max_examples * 2 // 5, deadline=None)
MANY: Final = settings(deadline=None)


class Number(str):
    """A number as it is spelled."""

    __slots__ = ()


# Small alphabets, so that random values are equal now and then.
NUMBERS: Final = st.one_of(
    st.sampled_from(["0", "-0", "0.0", "1", "1.0", "1e0", "10e-1", "0.1", "0.10", "0.1000000000000000000001", "1e400"]),
    st.integers(-(10**30), 10**30).map(str),
    st.builds(
        lambda whole, part, exponent: f"{whole}.{part}e{exponent}",
        st.integers(-99, 10**18),
        st.integers(0, 10**18),
        st.integers(-400, 400),
    ),
).map(Number)
KEYS: Final = st.one_of(st.sampled_from(["a", "b", "a/b", "~", "~1", "", "é", "id"]), st.text(max_size=4))
TREES: Final[st.SearchStrategy[Any]] = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.sampled_from(["", "1", "null"]), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=6,
)
OBJECTS: Final = st.dictionaries(KEYS, TREES, max_size=3)
CHANCE: Final = st.randoms(use_true_random=False)


def spelled(tree: Any, chance: Random | None = None) -> bytes:
    """The tree as JSON text; `chance` shuffles keys and varies white space, escapes and the spelling of numbers."""
    return _spelled(tree, chance).encode()


def _spelled(tree: Any, chance: Random | None) -> str:
    space = chance.choice(["", " ", "\n\t"]) if chance else ""
    if isinstance(tree, Number):
        return space + (_respelled(tree, chance) if chance else tree) + space
    if isinstance(tree, dict):
        items = list(tree.items())
        if chance:
            chance.shuffle(items)
        inner = ",".join(f"{_spelled(key, chance)}:{_spelled(value, chance)}" for key, value in items)
        return f"{space}{{{inner}}}{space}"
    if isinstance(tree, list):
        return f"{space}[{','.join(_spelled(value, chance) for value in tree)}]{space}"
    return space + json.dumps(tree, ensure_ascii=bool(chance and chance.random() < 0.5)) + space


def _respelled(number: str, chance: Random) -> str:
    """Another spelling of the same number."""
    mantissa, _, exponent = number.lower().partition("e")
    shift = chance.randrange(4)
    if shift:  # move the point to the left and raise the exponent
        sign, digits = ("-", mantissa[1:]) if mantissa.startswith("-") else ("", mantissa)
        whole, _, part = digits.partition(".")
        whole = whole.rjust(shift + 1, "0")
        left = whole[:-shift].lstrip("0") or "0"
        return f"{sign}{left}.{whole[-shift:]}{part}E{int(exponent or 0) + shift:+d}"
    return number


def opinion(raw: bytes) -> object:
    """The value of a JSON text by the standard library and exact fractions, as an independent reference."""
    return _tagged(json.loads(raw, parse_int=Fraction, parse_float=Fraction))


def _tagged(value: Any) -> object:
    if isinstance(value, dict):
        return "object", frozenset((key, _tagged(inner)) for key, inner in value.items())
    if isinstance(value, list):
        return "array", tuple(map(_tagged, value))
    return type(value).__name__, value
