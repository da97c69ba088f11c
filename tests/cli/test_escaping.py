"""Bytes as text that steers no terminal."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poller.cli.escaping import escaped, legible

json_values = st.dictionaries(
    st.text(), st.none() | st.integers() | st.text() | st.lists(st.text(), max_size=2), max_size=3
)


def harmless(text: str) -> bool:
    return all(letter.isprintable() for letter in text.replace("\n", ""))


@given(st.binary())
def test_any_bytes_are_harmless(raw: bytes) -> None:
    """Law: whatever was received, every character that is shown is printable, line breaks apart."""
    assert harmless(legible(raw))


@given(json_values)
def test_json_stays_json(value: object) -> None:
    """Law: JSON is shown as JSON of the same value."""
    raw = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    shown = legible(raw)
    assert harmless(shown)
    assert json.loads(shown) == value


@given(st.text())
def test_escaped_text_is_one_harmless_line(text: str) -> None:
    """Law: escaped text stays in its line, and two texts never look the same."""
    assert escaped(text).isprintable()
    assert escaped(text).encode("latin-1", "backslashreplace").decode("unicode_escape") == text


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b'{"a":[1.0,1e400],"a":null}', '{\n  "a": [\n    1.0,\n    1e400\n  ],\n  "a": null\n}'),
        ('{"a":"é\u009b31m\u202e"}'.encode(), '{\n  "a": "é\\u009b31m\\u202e"\n}'),
        ('["\U000e0001"]'.encode(), '[\n  "\\udb40\\udc01"\n]'),
        (b'{"a": \x1b[31m', '{"a": \\x1b[31m'),
        (b'{"a": "\xff\xc3\xa9\\', '{"a": "\\xffé\\\\'),
        (b"a\r\n\tb\x00", "a\\r\n\\tb\\x00"),
        (b"[" * 5000 + b"]" * 5000, "[" * 5000 + "]" * 5000),
        (b"", ""),
    ],
)
def test_what_is_shown(raw: bytes, shown: str) -> None:
    """Law: JSON is laid out with its numbers and repeated keys as received; what is not JSON is escaped."""
    assert legible(raw) == shown
