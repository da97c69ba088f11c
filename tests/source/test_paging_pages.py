"""Laws of :mod:`poller.source.paging`."""

from __future__ import annotations

import inspect
import json
import sys
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poller.changes.canonical import MAX_DEPTH
from poller.changes.records import Record, Rejected, record_reader
from poller.errors import SourceNonsense
from poller.lifecycle import at_once
from poller.source.paging import MAX_TOKEN_LENGTH, Page, decode_page, keys_instead, split_results
from tests.harness.growth import LINEAR, growth


def test_records_are_the_bytes_they_came_in() -> None:
    """Each record is kept byte for byte, of any JSON type; unknown keys of the envelope are ignored."""
    body = b'{"more":1,"results":[ {"n": 1.0} ,{"n":12345678901234567890123},null,[1],"\xff"],"pageToken":"p"}'
    records = [b'{"n": 1.0}', b'{"n":12345678901234567890123}', b"null", b"[1]", b'"\xff"']
    page = at_once(decode_page(body))
    assert (page.records, page.delta_token, page.page_token) == (records, None, "p")


@pytest.mark.parametrize("nothing", ["", None])
def test_an_empty_token_is_none(nothing: str | None) -> None:
    """Absent, null and empty tokens are none."""
    assert at_once(
        decode_page(json.dumps({"results": [], "deltaToken": nothing, "pageToken": nothing}).encode())
    ) == Page(b"", None, None, "pageToken null" if nothing is None else "pageToken empty")
    assert at_once(decode_page(b'{"results":[]}')) == Page(b"", None, None)


@settings(max_examples=40, deadline=None)
@given(st.text(min_size=1, alphabet=st.characters(categories=("L", "N", "P", "S")) | st.just(" ")))
def test_tokens_are_opaque(token: str) -> None:
    """Any printable token is accepted unchanged."""
    page = at_once(decode_page(json.dumps({"results": [], "deltaToken": token, "pageToken": token}).encode()))
    assert (page.delta_token, page.page_token) == (token, token)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not JSON"),
        (b"<html>", "markup"),
        (b'{"results":[{"id":"a"}', "not JSON"),
        (b'{"results":[]} x', "not JSON"),
        (b"\xff", "not JSON"),
        (b'{"results":[NaN]', "not JSON"),
        (b"[]", "not a list envelope"),
        (b"{}", "not a list envelope: expected the key results, found none"),
        (b'{"data":[],"next":1}', "not a list envelope: expected the key results, found data, next"),
        (b'{"results":null}', "not a list envelope"),
        (b'{"results":{}}', "not a list envelope"),
        (b'{"results":[],"pageToken":5}', "not a list envelope"),
        (b'{"results":[],"deltaToken":"\xff"}', "not JSON"),
        (b'{"results":[],"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deep"),
        (b'{"results":[],"x":' + b"[" * 100 + b"]" * 100 + b"}", "nested too deep: more than 100 levels"),
        ('{"results":[]}'.encode("utf-16"), "byte order mark"),
        (b'{"results":[1],"results":[2]}', "results stands in it twice"),
        (b'{"results":[1],"results":[NaN]}', "not JSON"),
        (b'{"results":[],"deltaToken":"a","pageToken":null,"deltaToken":"b"}', "deltaToken stands in it twice"),
        (b'{"pageToken":null,"results":[{"a":":"}],"page\\u0054oken":null}', "pageToken stands in it twice"),
        (b'{"pageToken":null,"results":[],"a\\u003ab":1,"pageToken":"p"}', "pageToken stands in it twice"),
        (b'{"results":[],"deltaToken":"a\\nb"}', "deltaToken cannot be sent back"),
        (b'{"results":[],"pageToken":"%b"}' % (b"x" * (MAX_TOKEN_LENGTH + 1)), "pageToken cannot be sent back"),
    ],
    ids=lambda value: repr(value[:24]),
)
def test_what_is_not_the_envelope_is_nonsense(body: bytes, reason: str) -> None:
    """Any other body is an error of one short line that says what is wrong."""
    with pytest.raises(SourceNonsense, match=reason) as refused:
        at_once(decode_page(body))
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 200


def test_a_mark_of_utf_8_is_passed_over() -> None:
    """A UTF-8 byte order mark is skipped, as RFC 8259 allows; a second one is an error."""
    page = at_once(decode_page(b'\xef\xbb\xbf{"results":[{"id":"a"}],"deltaToken":"d"}'))
    assert (page.records, page.delta_token) == ([b'{"id":"a"}'], "d")
    with pytest.raises(SourceNonsense, match="not JSON"):
        at_once(decode_page(b'\xef\xbb\xbf\xef\xbb\xbf{"results":[]}'))


def test_what_stands_around_the_records_is_none_of_ours() -> None:
    """Unknown keys may repeat, hold colons and nest; the content of records is not checked."""
    deep = b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1)
    records = [b'{"results":1,"results":2,"deltaToken":":"}', b"[" * 500 + b"]" * 500]
    body = b'{"x":1,"a\\u003ab":":","x":{"results":[]},"results":[%b],"deltaToken":"d","y":%b}' % (
        b" ,".join(records),
        deep,
    )
    page = at_once(decode_page(body))
    assert (page.records, page.delta_token, page.page_token) == (records, "d", None)


@pytest.mark.parametrize(
    "body",
    [
        b"Authorization: Bearer s3cret",
        b'"s3cret"',
        b'{"results":"s3cret"}',
        b'{"s3cret":1,"s3cret":1,"data":"s3cret"}',
    ],
)
def test_an_error_repeats_nothing_of_the_body(body: bytes) -> None:
    """An error repeats nothing of a body, which may echo the credential."""
    with pytest.raises(SourceNonsense) as refused:
        at_once(decode_page(body))
    assert "s3cret" not in str(refused.value)


def test_a_token_within_the_limit_is_taken() -> None:
    """A token of exactly the longest length is accepted."""
    found: Any = at_once(decode_page(b'{"results":[],"pageToken":"%b"}' % (b"x" * MAX_TOKEN_LENGTH)))
    assert len(found.page_token) == MAX_TOKEN_LENGTH


# Laws of :mod:`poller.source.paging`.


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{}", "none"),
        (b'{"data":[{"id":1}],"next_cursor":null}', "data, next_cursor"),
        (b'{"_embedded":{"contractTypes":[]},"_links":{},"@odata.count":3}', "_embedded, _links and 1 other"),
        (b'{"Items":[],"totalCount":2,"tenant":"x","as":"y"}', "Items, totalCount and 2 others"),
        (b'{"tenant":"x"}', "1 other"),
        (b'{"a":[],"data":1,"items":1,"records":1,"page":1,"meta":1,"links":1,"total":1}',
         "data, items, records, page, meta, links and 2 others"),
        (b'{"results":5}', None),
        (b'[{"data":1}]', None),
        (b"oops", None),
        (b"[" * 100_000, None),
        (b'{"\xff":1}', None),
    ],
    ids=lambda value: repr(value[:24]) if value else "None",
)  # fmt: skip
def test_the_keys_that_came(body: bytes, words: str | None) -> None:
    """The error names at most six common keys and counts the others; no keys give no text."""
    assert keys_instead(body, "results") == words


@given(st.dictionaries(st.text(max_size=40), st.integers(), max_size=20))
def test_nothing_else_of_the_body_is_said(found: dict[str, int]) -> None:
    """The text is one short printable line that names known keys only."""
    words = keys_instead(msgspec.json.encode({**found, "s3cret-" * 3: 1}), "results")
    if "results" not in found:
        assert words is not None
        assert words.isprintable()
        assert len(words) < 180
        assert "s3cret" not in words


# Laws of :mod:`poller.source.paging`: one bad record costs itself, not its page.

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(st.lists(JSON, max_size=5), st.dictionaries(st.text(max_size=5), JSON, max_size=3), st.booleans())
def test_the_parts_are_those_of_the_envelope(results: list[Any], others: dict[str, Any], indented: bool) -> None:
    """For any envelope, the elements equal those of a JSON parser, and the remainder is the rest of it."""
    envelope = {**others, "results": results, "after": [1, {"results": [2]}]}
    parts = at_once(split_results(json.dumps(envelope, indent=2 if indented else None).encode()))
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
    """A bad record is rejected with its bytes and reason; the other records and the tokens are read."""
    body = b'{"results":[{"id":"a"}, ' + bad + b' ,{"id":"c","t":"],{"}],"deltaToken":"d","pageToken":"p"}'
    page = at_once(decode_page(body))
    read = record_reader("id")
    first, second, third = (read(raw) for raw in page.records)
    assert isinstance(first, Record)
    assert isinstance(second, Rejected)
    assert isinstance(third, Record)
    assert (first.key, third.key, second.raw) == ("a", "c", bad)
    assert reason in second.reason
    assert (page.delta_token, page.page_token) == ("d", "p")


@pytest.mark.parametrize("start", [b'{"results":[', b'{"x":'])
def test_marks_without_end_take_no_time(start: bytes) -> None:
    """The time for a page grows linearly with its length; quadratic growth would take hours here."""
    assert at_once(split_results(start + b'\\"' * 2_000_000)) is None


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
    """A page that is cut off or has another shape fails as a whole."""
    with pytest.raises(SourceNonsense):
        at_once(decode_page(body))


FEW = 50_000  # records, in place of MAX_RECORDS


def steps(body: bytes) -> tuple[int, Page | SourceNonsense]:
    """How often decoding the body yielded to other tasks, and its result."""
    reading, count = decode_page(body, most=FEW), 0
    try:
        while True:
            next(reading)
            count += 1
    except StopIteration as done:
        return count, done.value
    except SourceNonsense as nonsense:
        return count, nonsense


@pytest.mark.parametrize("element", [b"0", b"{}", b'{"id":1}', b"[[]]"])
def test_a_page_has_a_bounded_number_of_records(element: bytes) -> None:
    """The limit of records is accepted; one more is an error with the remedy, and decoding yields meanwhile."""
    body = b'{"results":[%b],"deltaToken":"d"}' % b",".join([element] * FEW)
    _, page = steps(body)
    assert isinstance(page, Page)
    assert (len(page.records), set(page.records), page.delta_token) == (FEW, {element}, "d")
    count, refused = steps(body.replace(b"[", b"[%b," % element, 1))
    assert isinstance(refused, SourceNonsense)
    assert str(refused) == f"the answer has more than {FEW} records in a page; set limit, or a smaller one"
    assert count >= FEW // 10_000


@pytest.mark.parametrize(
    "body",
    [
        b'{"results":[%b',
        b'{"\\u0072esults":[%b]}',
        b'{"results":[],"x":[%b]',
        b'{"results":[],"results":[%b]}',
        b'{"x":{"results":[%b]}}',
        b"[%b]",
    ],
)
def test_what_is_no_page_takes_no_memory_by_its_commas(body: bytes) -> None:
    """A body with more commas than the limit of records is refused without parsing them into values."""
    whole = body.replace(b"%b", b",".join([b"0"] * (2 * FEW)))
    tracemalloc.start()
    try:
        _, refused = steps(whole)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(refused, SourceNonsense)
    assert peak < 10 * len(whole)  # parsed values would take more than fifty bytes for each two


def test_a_large_page_of_few_records_is_read_as_any_other() -> None:
    """Commas within records do not count as records, even above the limit of records."""
    record = b'{"id":"%d","x":[%b],"n":{"t":"],[\\""}}'
    records = [record % (number, b",".join([b"0"] * 300)) for number in range(400)]
    _, page = steps(b'{"deltaToken":"d","results":[ %b ]}' % b" ,\n".join(records))
    assert isinstance(page, Page)
    assert (page.records, page.delta_token) == (records, "d")


@pytest.mark.parametrize(
    "text", [b'\\"', b'"', b'["', b"[", b"{}", b'{"a":"', b'"results":', b'"results":[', b"{[", b'{"a\\"']
)
def test_cutting_takes_time_by_the_length_alone(text: bytes) -> None:
    """Decoding takes linear time, whatever text is repeated in place of the records."""
    for start in (b'{"results":[', b"{"):
        assert growth(lambda size, start=start: steps(start + text * (size // len(text))), 8 * 1024) < LINEAR  # type: ignore[misc]


def test_records_that_are_cut_out_deep_in_the_stack_are_those_of_the_answer() -> None:
    """Records are cut out later than the answer is decoded, where fewer levels are left for one that is nested."""
    records = [b'{"id":"good"}', b'{"id":"deep","x":' + b"[" * 900 + b"]" * 900 + b"}"]
    page = at_once(decode_page(b'{"results":[%b],"deltaToken":"d"}' % b" ,".join(records)))

    def deeper(levels: int) -> list[bytes]:
        return deeper(levels - 1) if levels else page.records

    left = sys.getrecursionlimit() - len(inspect.stack())
    assert [deeper(levels) for levels in (0, 10, left - 500, left - 40)] == [records] * 4


def test_an_array_of_white_space_has_no_records() -> None:
    """An answer without records is one however it is written."""
    assert at_once(decode_page(b'{"results":[ \n ]}')).results == b""
