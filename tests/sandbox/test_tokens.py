"""Laws of :mod:`poller.sandbox.tokens`."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.sandbox.tokens import DeltaToken, NonsenseToken, PageToken, decode, encode

numbers = st.integers(0, 2**62)
names = st.text(st.characters(codec="utf-8"))
page_tokens = st.builds(
    PageToken, names, st.none() | names, st.none() | numbers, numbers, numbers, numbers, st.lists(names).map(tuple)
)
delta_tokens = st.builds(DeltaToken, names, st.none() | names, numbers)


@given(page_tokens, delta_tokens)
def test_decode_undoes_encode(page: PageToken, delta: DeltaToken) -> None:
    """A token read back is the token, and its text needs no escaping in a URL."""
    assert decode(encode(page), PageToken) == page
    assert decode(encode(delta), DeltaToken) == delta
    assert re.fullmatch(r"[A-Za-z0-9_-]+", encode(page) + encode(delta))


@given(st.text() | st.from_regex(r"[A-Za-z0-9_-]{0,60}", fullmatch=True))
def test_nonsense_is_not_read(text: str) -> None:
    """Text that was not made here is refused, whatever it looks like."""
    with pytest.raises(NonsenseToken):
        decode(text, DeltaToken)


@given(delta_tokens, st.data())
def test_a_damaged_token_is_not_read(token: DeltaToken, data: st.DataObject) -> None:
    """A token with one letter changed is refused."""
    text = encode(token)
    place = data.draw(st.integers(0, len(text) - 2))  # the last letter may have bits that do not count
    letter = data.draw(st.sampled_from("AZaz09-_").filter(lambda letter: letter != text[place]))
    with pytest.raises(NonsenseToken):
        decode(text[:place] + letter + text[place + 1 :], DeltaToken)


def test_one_kind_is_not_the_other() -> None:
    """A page token is no delta token, nor the other way round."""
    with pytest.raises(NonsenseToken):
        decode(encode(PageToken("x", None, None, 0, 0, 1, ())), DeltaToken)
    with pytest.raises(NonsenseToken):
        decode(encode(DeltaToken("x", None, 0)), PageToken)
