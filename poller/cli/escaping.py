"""Bytes of unknown origin as text for people.

Law: what comes out steers no terminal: line breaks apart, every character of it is printable. Nothing is lost either:
what is not printable is written as an escape, in JSON as JSON writes it.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

_SHORT: Final = {"\t": r"\t", "\r": r"\r", "\\": r"\\"}
_SUSPECT: Final = re.compile(r"[^ -\[\]-~]")  # all but printable ASCII without the backslash
_BEYOND: Final = re.compile(r"[^\n -~]")


def legible(raw: bytes) -> str:
    """The lines to show: JSON with each member on a line of its own; what is not JSON as it stands, escaped."""
    try:
        text = msgspec.json.format(raw, indent=2).decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "\n".join(map(_of_bytes, raw.split(b"\n")))
    return _BEYOND.sub(_in_json, text)


def escaped(text: str) -> str:
    r"""The text in one line; what is not printable as ``\t``, ``\x1b``, ``\u202e``, a backslash as ``\\``."""
    return _SUSPECT.sub(_in_text, text)


def _of_bytes(line: bytes) -> str:
    r"""What is not UTF-8 becomes ``\xff``, and so do the characters up to that; no byte is mistaken for another."""
    return "".join(
        f"\\x{ord(letter) - 0xDC00:02x}" if "\udc80" <= letter <= "\udcff" else escaped(letter)
        for letter in line.decode("utf-8", "surrogateescape")
    )


def _in_text(match: re.Match[str]) -> str:
    letter = match[0]
    if letter.isprintable() and letter != "\\":
        return letter
    return _SHORT.get(letter) or letter.encode("unicode_escape").decode()


def _in_json(match: re.Match[str]) -> str:
    letter = match[0]
    if letter.isprintable():
        return letter
    units = letter.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
