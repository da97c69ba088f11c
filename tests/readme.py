"""What stands in the README: its code blocks and tables by their names, which stand before them in comments."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).parent.parent / "README.md"


def text() -> str:
    """All of it."""
    return FILE.read_text("utf-8")


def block(name: str) -> str:
    """The code block that follows the comment of this name.

    Raises:
        AssertionError: there is none.
    """
    found = re.search(rf"<!-- {re.escape(name)} -->\n```\w+\n(.*?)^```$", text(), re.DOTALL | re.MULTILINE)
    assert found, f"README.md has no code block after <!-- {name} -->"
    return found[1]


def table(name: str) -> str:
    """What stands in the place of a table.

    Raises:
        AssertionError: there is no place for it.
    """
    return _around(name)[1]


def write_table(name: str, written: str) -> None:
    """Put a table in its place.

    Raises:
        AssertionError: there is no place for it.
    """
    before, _, rest = _around(name)
    FILE.write_text(before + written + rest, "utf-8")


def _around(name: str) -> tuple[str, str, str]:
    begin, end = f"<!-- begin {name} -->\n\n", f"\n\n<!-- end {name} -->"
    found = re.fullmatch(f"(.*{re.escape(begin)})(.*)({re.escape(end)}.*)", text(), re.DOTALL)
    assert found, f"README.md has no {begin!r} with {end!r}"
    return found[1], found[2], found[3]
