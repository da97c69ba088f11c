"""Laws of :mod:`poller.source.splitting`: one bad record costs itself, not its page."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poller.changes.records import Record, Rejected, record_reader
from poller.errors import SourceNonsense
from poller.source.envelope import decode_page
from poller.source.splitting import split_results

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(st.lists(JSON, max_size=5), st.dictionaries(st.text(max_size=5), JSON, max_size=3), st.booleans())
def test_the_parts_are_those_of_the_envelope(results: list[Any], others: dict[str, Any], indented: bool) -> None:
    """Law: for any envelope the elements are those that a JSON reader finds, and what is left is the rest of it."""
    envelope = {**others, "results": results, "after": [1, {"results": [2]}]}
    parts = split_results(json.dumps(envelope, indent=2 if indented else None).encode())
    assert parts is not None
    elements, around = parts
    assert [json.loads(element) for element in elements] == results
    assert json.loads(around) == {**envelope, "results": []}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b'{"id":"b","x":NaN}', "not JSON"),
        (b'{"id":"b","x":"\\ud800"}', "not JSON"),
        (b'{"id":"b","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deep"),
        (b'{"id":"b","x":"\\udc00\\ud800"}', "not JSON"),
        (b"", "not JSON"),
    ],
    ids=["NaN", "lone surrogate", "deep", "surrogates the wrong way round", "nothing"],
)
def test_a_bad_record_leaves_the_others_of_its_page(bad: bytes, reason: str) -> None:
    """Law: the records around it are read, its own bytes are refused with the reason, the tokens count."""
    body = b'{"results":[{"id":"a"}, ' + bad + b' ,{"id":"c","t":"],{"}],"deltaToken":"d","pageToken":"p"}'
    page = decode_page(body)
    read = record_reader("id")
    first, second, third = (read(raw) for raw in page.records)
    assert isinstance(first, Record)
    assert isinstance(second, Rejected)
    assert isinstance(third, Record)
    assert (first.key, third.key, second.raw) == ("a", "c", bad)
    assert reason in second.reason
    assert (page.delta_token, page.page_token) == ("d", "p")


@pytest.mark.parametrize(
    "body",
    [
        b'{"results":[{"id":"a"},{"id":',
        b'{"results":[{"id":NaN}]',
        b'{"results":[NaN]} trailing',
        b'{"x":{"results":[NaN]}}',
        b"<html>[]</html>",
        b'"results":[NaN]',
        b'{"results":NaN}',
    ],
)
def test_what_is_no_envelope_stays_none(body: bytes) -> None:
    """Law: a page that was cut off, or is something else, fails as a whole."""
    with pytest.raises(SourceNonsense):
        decode_page(body)
