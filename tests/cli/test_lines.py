"""An event as a line."""

from __future__ import annotations

import msgspec
import pytest

from poller.cli.lines import Content, compact, what_changed


def modified(old: bytes, new: bytes, *changed: str) -> Content:
    return Content(2, "delta", msgspec.Raw(new), msgspec.Raw(old), changed)


@pytest.mark.parametrize("number", ["123456789012345678901234567890", "1.0", "1e400", "0.10000000000000000000001"])
def test_numbers_stay(number: str) -> None:
    """Compact JSON has no white space between its parts, and every number in the very digits received."""
    assert compact(f'{{ "a" :\n {number} , "b": "x  y"}}'.encode()) == f'{{"a":{number},"b":"x  y"}}'
    assert what_changed(modified(b'{"a":1}', f'{{"a":{number}}}'.encode(), "/a")) == f"a: 1 → {number}"


def test_pointers() -> None:
    """Pointers are followed through objects, escapes undone; a side that lacks the key is absent."""
    old, new = b'{"a/b":{"~":"x"},"lastModifiedAt":"1"}', b'{"a/b":{"~":null,"c":[1, 2]},"lastModifiedAt":"2"}'
    content = modified(old, new, "/a~1b/c", "/a~1b/~0", "/lastModifiedAt")
    assert what_changed(content) == 'a~1b/c: absent → [1,2], a~1b/~0: "x" → null'


def test_terminal_is_safe() -> None:
    """Nothing in a record steers the terminal."""
    assert "\u202e" not in what_changed(modified('{"a":"\u202eX"}'.encode(), '{"a":"\x9b2J"}'.encode(), "/a"))
    assert "\x9b" not in what_changed(modified(b"{}", '{"a":"\x9b2J"}'.encode(), "/a"))


def test_created_says_what_matters() -> None:
    """A new record is shown by its telling members, not by ids and stamps."""
    record = msgspec.Raw(b'{"id":"1","qualificationID":"2","name":"First aid","lastModifiedAt":"x"}')
    assert what_changed(Content(1, "delta", record)) == 'name: "First aid"'
