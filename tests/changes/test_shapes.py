"""Laws of :mod:`poller.changes.shapes`: another choice of fields is no storm, and costs no change."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from poller.changes.shapes import shape_of
from poller.source.paging import Query
from tests.source.round_sides import FEED, Round, Script

KEYS = ("a", "b", "c")
SHAPES = st.sampled_from([(), ("id", "a"), ("id", "b", "c"), ("id", "a", "b", "c")])


def test_without_fields_all_counts() -> None:
    """All asked for, before and now: there is no shape. Before not being known is as the same."""
    assert shape_of((), ()) is None
    assert shape_of(None, ()) is None
    assert shape_of(("a",), ()) is not None


@given(
    st.lists(st.tuples(SHAPES, st.fixed_dictionaries(dict.fromkeys(KEYS, st.integers(0, 2)))), min_size=2, max_size=7)
)
async def test_what_was_published_agrees_with_the_source_in_all_that_was_asked_for_twice(
    steps: list[tuple[tuple[str, ...], dict[str, int]]],
) -> None:
    """Laid one over the other, the events give the source's value of each field that was ever published.

    As far as it is asked for now; and while nothing changes, no choice of fields publishes anything.
    """
    read = Round()
    laid: dict[str, Any] = {}
    sources: list[dict[str, Any]] = []
    for fields, values in steps:
        source = {"id": "x", **values}
        shown = {key: value for key, value in source.items() if not fields or key in fields}
        feed = msgspec.structs.replace(FEED, query=Query(fields=fields), delta=False)
        count = len(read.store.events)
        result = await read(Script().on([shown]), feed)
        assert result.ok
        for event in read.store.events[count:]:
            laid |= event["data"]["record"]
            if "changed" in event["data"]:
                previous, record = event["data"]["previous"], event["data"]["record"]
                for pointer in event["data"]["changed"]:
                    assert previous.get(pointer[1:]) != record.get(pointer[1:])
        sources.append(source)
        if len(sources) > 1 and all(one == source for one in sources):
            assert result.changes == 0
        assert all(laid[key] == shown[key] for key in laid if key in shown), (laid, shown)
