"""Laws of :mod:`poller.delivery.batching`."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.delivery.batching import batches, full

SIZES = st.lists(st.integers(1, 8), max_size=20)


def body(sizes: list[int]) -> int:
    return len(b"[" + b",".join(b"x" * size for size in sizes) + b"]")


@given(SIZES, st.integers(1, 6), st.integers(3, 30))
def test_every_event_goes_once_in_order_within_the_limits(sizes: list[int], max_events: int, max_bytes: int) -> None:
    """Only a single event may be over the limit; and no batch could have taken the first event of the next."""
    cuts = list(batches(sizes, max_events=max_events, max_bytes=max_bytes))
    parts = [sizes[cut] for cut in cuts]
    assert [size for part in parts for size in part] == sizes
    assert all(part and len(part) <= max_events for part in parts)
    assert all(body(part) <= max_bytes or len(part) == 1 for part in parts)
    for part, following in pairwise(parts):
        assert len(part) == max_events or body([*part, following[0]]) > max_bytes


@given(SIZES, st.integers(1, 6), st.integers(3, 30))
def test_full_means_that_nothing_more_fits(sizes: list[int], max_events: int, max_bytes: int) -> None:
    """Not even an event of one byte would change the first batch; else it would."""
    first = next(batches([*sizes, 1], max_events=max_events, max_bytes=max_bytes))
    assert full(sizes, max_events=max_events, max_bytes=max_bytes) == (first.stop <= len(sizes))


@pytest.mark.parametrize(
    ("sizes", "expected"), [([], []), ([9], [1]), ([100], [1]), ([4, 4], [1, 1]), ([3, 4], [2]), ([100, 1, 1], [1, 2])]
)
def test_where_it_is_cut(sizes: list[int], expected: list[int]) -> None:
    """With ten bytes a batch: the brackets and the comma count."""
    assert [cut.stop - cut.start for cut in batches(sizes, max_events=5, max_bytes=10)] == expected
