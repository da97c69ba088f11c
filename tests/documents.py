"""The project's documents: their code blocks and tables, found by the comments before them.

**Invariants**

- The name of a block or table occurs in one document only, so a test need not say in which.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
README: Final = ROOT / "README.md"
MANUAL: Final = ROOT / "deploy" / "README.md"
ARCHITECTURE: Final = ROOT / "poller" / "README.md"
TESTING: Final = ROOT / "tests" / "README.md"
DOCUMENTS: Final = (README, MANUAL, ARCHITECTURE, TESTING)


def text() -> str:
    """The text of all documents."""
    return "\n".join(file.read_text("utf-8") for file in DOCUMENTS)


_HEADING: Final = re.compile(r"^#+ (.+)$", re.MULTILINE)


def prose(file: Path) -> str:
    """A document without its code blocks."""
    return re.sub(r"^```.*?^```$", "", file.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(file: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub and package indexes make them."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in _HEADING.findall(prose(file))}


def block(name: str) -> str:
    """The code block that follows the comment of this name.

    Raises:
        AssertionError: there is none, or there are several.
    """
    found = re.findall(rf"<!-- {re.escape(name)} -->\n```\w+\n(.*?)^```$", text(), re.DOTALL | re.MULTILINE)
    assert len(found) == 1, f"expected one code block after <!-- {name} --> in the documents, found {len(found)}"
    return str(found[0])


def table(name: str) -> str:
    """The text between the two comments of a generated table.

    Raises:
        AssertionError: no document has these comments.
    """
    return _around(name)[2]


def write_table(name: str, written: str) -> None:
    """Replace the text between the two comments of a generated table.

    Raises:
        AssertionError: no document has these comments.
    """
    file, before, _, after = _around(name)
    file.write_text(before + written + after, "utf-8")


def _around(name: str) -> tuple[Path, str, str, str]:
    begin, end = f"<!-- begin {name} -->\n\n", f"\n\n<!-- end {name} -->"
    pattern = re.compile(f"(.*{re.escape(begin)})(.*)({re.escape(end)}.*)", re.DOTALL)
    found = [(file, match) for file in DOCUMENTS if (match := pattern.fullmatch(file.read_text("utf-8")))]
    assert len(found) == 1, f"expected one document with {begin!r} and {end!r}, found {len(found)}"
    ((file, match),) = found
    return file, match[1], match[2], match[3]
