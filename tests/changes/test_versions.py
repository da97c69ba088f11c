"""Laws of :mod:`poller.changes.versions`."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.changes.records import Record, Rejected, record_reader
from poller.changes.versions import latest_versions
from tests.changes.samples import FEW

NINE, TEN, ELEVEN = (f"2025-03-01T{hour}:00:00Z" for hour in ("09", "10", "11"))
ELEVEN_ELSEWHERE = "2025-03-01T09:00:00-02:00"
read = record_reader("id")


def version(n: int, modified: str | None = None, **more: Any) -> bytes:
    when = {} if modified is None else {"lastModifiedAt": modified}
    return msgspec.json.encode({"id": "a", "n": n, **when, **more})


def left_of(*raws: bytes, partial: bool = False) -> list[Any]:
    """What is left of a page: values of records, reasons of what was rejected."""
    found = latest_versions([read(raw) for raw in raws], partial=partial)
    return [json.loads(one.raw) if isinstance(one, Record) else one.reason for one in found]


def test_a_page_without_repetitions_stays_as_it_is() -> None:
    """The same records in the same order, the rejected ones in their places."""
    records = [read(b'{"id":"b"}'), read(b"{}"), read(b'{"id":1}'), read(b'{"id":"1"}'), read(b"{}")]
    assert latest_versions(records) == records


@pytest.mark.parametrize(
    ("modified", "chosen"),
    [
        ((NINE, TEN), 1),
        ((TEN, NINE), 0),
        ((TEN, TEN), 1),
        ((ELEVEN_ELSEWHERE, TEN), 0),
        ((TEN, None), 1),
        ((None, TEN), 1),
        ((None, None), 1),
        ((TEN, ELEVEN, NINE), 1),
        ((ELEVEN, None, NINE), 0),
    ],
)
def test_the_one_modified_last_is_chosen(modified: tuple[str | None, ...], chosen: int) -> None:
    """By the moment and not by its spelling; where one does not say when, by the order of the page."""
    raws = [version(place, when) for place, when in enumerate(modified)]
    assert left_of(b'{"id":"b"}', *raws, b'{"id":"c"}') == [{"id": "b"}, json.loads(raws[chosen]), {"id": "c"}]


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b'{"id":"a","n":2,"n":3}', 'the key "n" stands twice'),
        (b'{"id":"b","n":2,"id":"a"}', 'the key "id" stands twice'),
        (b'{"id":"a","n":"\xff"}', "not UTF-8"),
        (b'{"id":"a","n":1e99999999999999999999}', "a number is out of any range"),
    ],
    ids=["twice", "id twice", "not UTF-8", "range"],
)
def test_a_version_that_cannot_be_used_displaces_none(bad: bytes, reason: str, partial: bool) -> None:
    """Whether it came first or last, the good one is left and the bad one is rejected, its bytes as they came."""
    for raws in ([version(1), bad], [bad, version(1)]):
        assert left_of(*raws, partial=partial) == [{"id": "a", "n": 1}, reason]
    (rejected,) = (one for one in latest_versions([read(bad), read(bad), read(version(1))])[1:2])
    assert rejected == Rejected(bad, reason)


def test_parts_are_laid_over_each_other_in_order() -> None:
    """Two parts with different keys in one page: both count, the one modified later last."""
    name, reason = version(1, ELEVEN, name="x"), version(2, TEN, reason="y")
    whole = {"id": "a", "n": 1, "name": "x", "reason": "y", "lastModifiedAt": ELEVEN}
    assert left_of(name, reason, partial=True) == [whole]
    assert left_of(reason, name, partial=True) == [whole]
    assert left_of(name, version(3, NINE, late=1), reason, partial=True) == [{**whole, "late": 1}]


@FEW
@given(st.permutations([NINE, TEN, ELEVEN]), st.booleans())
def test_three_parts_in_any_order_are_one_record(times: list[str], other_between: bool) -> None:
    """However paging mixed them, the value of the latest counts and nothing that only an earlier one has is lost."""
    raws = [version(int(when[11:13]), when, **{f"only{when[11:13]}": True}) for when in times]
    if other_between:
        raws.insert(1, b'{"id":"b"}')
    (found,) = (one for one in left_of(*raws, partial=True) if one["id"] == "a")
    assert found == {"id": "a", "n": 11, "lastModifiedAt": ELEVEN, "only09": True, "only10": True, "only11": True}
