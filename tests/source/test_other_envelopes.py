"""Laws of :mod:`poller.source.other_envelopes`."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.source.other_envelopes import keys_instead


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
    """The common ones by their names, at most six, the others by their number; nothing where there is none."""
    assert keys_instead(body, "results") == words


@given(st.dictionaries(st.text(max_size=40), st.integers(), max_size=20))
def test_nothing_else_of_the_body_is_said(found: dict[str, int]) -> None:
    """Whatever the keys are: one short printable line, in which a key that nobody knows does not stand."""
    words = keys_instead(msgspec.json.encode({**found, "s3cret-" * 3: 1}), "results")
    if "results" not in found:
        assert words is not None
        assert words.isprintable()
        assert len(words) < 180
        assert "s3cret" not in words
