"""A list envelope with a record in it that is no JSON, taken apart all the same.

The fast way reads a page as one JSON text, so that a single bad record (nested too deep, ``NaN``, half a surrogate)
would cost the whole page. Here the page is cut along its brackets, commas and strings alone: what lies between is
judged record by record, later. The envelope around the records has to be JSON; a page that was cut off is none.
"""

from __future__ import annotations

import re
from typing import Final

LONGEST: Final = 8 * 1024 * 1024  # bytes; cutting is slow, and a page like that is no accident
_STRUCTURE: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},]', re.DOTALL)
_OPENING: Final = re.compile(rb"\s*:\s*\[")
_OPEN, _CLOSE = (b"[", b"{"), (b"]", b"}")


def split_results(body: bytes) -> tuple[list[bytes], bytes] | None:
    """The elements of the envelope's ``results``, as they stand, and the envelope with none of them.

    None where there is no such array, where it does not end, or where the body is too long for this.
    """
    start = _start(body) if len(body) <= LONGEST else None
    if start is None:
        return None
    elements: list[bytes] = []
    depth, begun = 0, start
    for mark in _STRUCTURE.finditer(body, start):
        found = mark[0]
        if found in _OPEN:
            depth += 1
        elif found in _CLOSE and depth:
            depth -= 1
        elif not depth and found in (b",", b"]"):
            elements.append(body[begun : mark.start()].strip())
            begun = mark.end()
            if found == b"]":
                return ([] if elements == [b""] else elements), body[:start] + body[mark.start() :]
    return None


def _start(body: bytes) -> int | None:
    """Where the first element of ``results`` begins: the key of the envelope itself, not of a record."""
    depth = 0
    for mark in _STRUCTURE.finditer(body):
        found = mark[0]
        if found in _OPEN:
            depth += 1
        elif found in _CLOSE:
            depth -= 1
        elif depth == 1 and found == b'"results"':
            opening = _OPENING.match(body, mark.end())
            if opening:
                return opening.end()
    return None
