"""Records of random shapes, as an API lists them: those of one shape mostly look alike."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

SHAPES = st.dictionaries(
    st.sampled_from(["a", "a.b", "aXb", "$c", "@d", "b%", "é", "lastModifiedAt", "qualificationID"]),
    st.sampled_from(["text", "number", "long", "uuid", "id", "day", "moment", "time", "word", "object", "list"]),
    max_size=4,
)
DRAWN: dict[str, st.SearchStrategy[Any]] = {
    "text": st.text(max_size=130) | st.uuids().map(lambda one: str(one).upper()),
    "number": st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False),
    "long": st.integers(10**60, 10**200),
    "uuid": st.uuids().map(str),
    "id": st.just("the same as the id"),
    "day": st.dates().map(str) | st.none(),
    "moment": st.datetimes().map(lambda at: at.isoformat(timespec="milliseconds") + "Z")
    | st.just("2026-01-01T00:00:00.000Z"),
    "time": st.times().map(lambda at: at.isoformat(timespec="seconds") + "+02:00"),
    "word": st.sampled_from([None, True, False]),
    "object": st.uuids().map(lambda one: {"of": str(one), "n": {}}),
    "list": st.lists(st.integers(0, 9) | st.booleans(), max_size=2),
}


def drawn(shape: Mapping[str, str], data: st.DataObject, count: int) -> list[bytes]:
    """Records of this shape: the kind of each member, by its name."""
    values = [{name: data.draw(DRAWN[kind]) for name, kind in shape.items()} for _ in range(count)]
    made = [{"id": str(data.draw(st.uuids())), **one} for one in values]
    same = {name for name, kind in shape.items() if kind == "id"}
    return encoded([{name: one["id"] if name in same else one[name] for name in one} for one in made])


def encoded(records: Sequence[Any], *, is_plain: bool = False) -> list[bytes]:
    """These records as an API writes them."""
    return [json.dumps(one, ensure_ascii=is_plain, separators=(",", ":")).encode() for one in records]


def ids_of(records: Sequence[bytes]) -> list[bytes]:
    """Their ids."""
    return [json.loads(record)["id"].encode() for record in records]
