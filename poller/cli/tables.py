"""Tables and paragraphs laid out for so many columns of a terminal, whatever stands in them.

Law: no line is wider than was asked for. Where a table is, the cells of the columns that may shrink are cut in their
middle, the widest first; where that is not enough, columns go that may be left out. Nothing else is cut as long as
there is room for one cell of each. Widths are those of a terminal: a Chinese character takes two.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from rich.cells import cell_len, set_cell_size

WIDTH: Final = 80
"""Where nobody looks, and so the width is nobody's."""

Line = list[tuple[str, str]]
"""One line in parts of ``(text, style)``."""

_GAP: Final = "  "
_CUT: Final = "…"


class Column(msgspec.Struct, frozen=True):
    """A column of a table.

    Attributes:
        heading: over it.
        right: whether it is aligned to the right.
        least: to how many cells it may shrink; None: not at all.
        leave: when it is left out: the column with the highest number first; 0: never.
        styles: the style of a cell by its text.
    """

    heading: str
    right: bool = False
    least: int | None = None
    leave: int = 0
    styles: dict[str, str] = {}


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[Line]:
    """The lines of a table, the headings first."""
    kept = list(range(len(columns)))
    while True:
        widths = _shrunk([columns[at] for at in kept], _natural(columns, rows, kept), width)
        least = max((columns[at].leave for at in kept), default=0)
        if widths is not None or not least:
            break
        kept = [at for at in kept if columns[at].leave != least]
    shown = [columns[at] for at in kept]
    widths = widths or _squeezed(len(kept), width)
    lines = [_line(shown, [column.heading for column in shown], widths, heading=True)]
    return lines + [_line(shown, [row[at] for at in kept], widths) for row in rows]


def shortened(text: str, width: int) -> str:
    """The text in so many cells at most, its middle left out where it is too long."""
    if cell_len(text) <= width:
        return text
    if width <= 1:
        return _CUT[:width]
    ahead = (width - 1) // 2
    behind = _last(text, width - 1 - ahead)
    return set_cell_size(text, width - 1 - cell_len(behind)).rstrip() + _CUT + behind


def wrapped(text: str, width: int, *, indent: str = "  ") -> Iterator[str]:
    """The text in lines of at most so many cells, broken between words where that can be; the first is not indented."""
    line, ahead = "", ""
    for word in text.split(" "):
        room = f"{line} {word}" if line.strip() else line + word
        if cell_len(room) <= width:
            line = room
            continue
        if line.strip():
            yield line
            ahead = indent
        line = ahead + word
        while cell_len(line) > width > cell_len(indent) + 1:
            head = _first(line, width)
            yield head
            line, ahead = indent + line[len(head) :], indent
    yield line


def _natural(columns: Sequence[Column], rows: Sequence[Sequence[str]], kept: Sequence[int]) -> list[int]:
    return [max(map(cell_len, (columns[at].heading, *(row[at] for row in rows)))) for at in kept]


def _shrunk(columns: Sequence[Column], widths: list[int], width: int) -> list[int] | None:
    """The widths once all fit; None where they cannot."""
    widths = list(widths)
    over = sum(widths) + len(_GAP) * (len(widths) - 1) - width
    while over > 0:
        giving = [at for at, column in enumerate(columns) if column.least is not None and widths[at] > column.least]
        if not giving:
            return None
        widths[max(giving, key=lambda at: widths[at])] -= 1
        over -= 1
    return widths


def _squeezed(count: int, width: int) -> list[int]:
    """As much for each, on a terminal that is too narrow for anything better."""
    return [max((width - len(_GAP) * (count - 1)) // max(count, 1), 1)] * count


def _line(columns: Sequence[Column], cells: Sequence[str], widths: Sequence[int], *, heading: bool = False) -> Line:
    line: Line = []
    for at, (column, cell, width) in enumerate(zip(columns, cells, widths, strict=True)):
        text = shortened(cell, width)
        pad = " " * (width - cell_len(text))
        last = at == len(columns) - 1
        style = "bold" if heading else column.styles.get(cell, "")
        line.append((pad + text if column.right else text + ("" if last else pad), style))
        if not last:
            line.append((_GAP, ""))
    while line and not line[-1][0].strip():
        line.pop()
    if line:
        line[-1] = (line[-1][0].rstrip(), line[-1][1])
    return line


def _first(text: str, width: int) -> str:
    at = len(text)
    while cell_len(text[:at]) > width:
        at -= 1
    return text[:at]


def _last(text: str, width: int) -> str:
    at = 0
    while cell_len(text[at:]) > width:
        at += 1
    return text[at:]
