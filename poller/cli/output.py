"""Standard output: lines, tables and JSON, for a terminal or a pipe.

**Invariants**

- A terminal gets colours and its width, a pipe plain and stable text in which nothing is shortened. ``NO_COLOR`` is
  respected.
- Every line is flushed when it is written.
- Foreign text cannot control the terminal: :func:`escaped` and :func:`legible` leave printable characters only, and
  lose nothing: what is not printable is written as an escape.
- No line of :func:`table` or :func:`wrapped` is wider than asked for. Columns that may shrink are shortened in the
  middle, the widest first; then columns are left out, and a last line names them; then all columns get the same
  width. A wide character (Chinese) takes two cells.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from poller.errors import PollerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

Line = list[tuple[str, str]]
"""One line in parts of ``(text, style)``."""

_GAP: Final = "  "
_CUT: Final = "…"
_SHORT: Final = {"\t": r"\t", "\r": r"\r", "\\": r"\\"}
_SUSPECT: Final = re.compile(r"[^ -\[\]-~]")  # all but printable ASCII without the backslash
_NOT_ASCII: Final = re.compile(r"[^\n -~]")


class OutputClosed(Exception):
    """The reader of standard output has left, as in ``poller tail | head``."""


class OutputFailed(PollerError):
    """Standard output cannot be written, as on a full disk."""


@contextmanager
def writing() -> Iterator[None]:
    """Name standard output in errors of the block, which writes to it.

    Raises:
        OutputClosed: the reader has left.
        OutputFailed: it cannot be written.
    """
    try:
        yield
    except BrokenPipeError:
        raise OutputClosed from None
    except OSError as error:
        raise OutputFailed(f"standard output cannot be written: {error.strerror or error}") from None


def write_line(line: str) -> None:
    """Write one line as it is; errors as of :func:`writing`."""
    with writing():
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def write_bytes(raw: bytes) -> None:
    """Write exactly these bytes; errors as of :func:`writing`."""
    with writing():
        sys.stdout.buffer.write(raw)
        sys.stdout.buffer.flush()


def write_json(value: object) -> None:
    """Write a value as one line of JSON, see :func:`write_json_text`."""
    import msgspec

    write_json_text(msgspec.json.encode(value).decode())


def write_json_text(text: str) -> None:
    """Write one line of JSON; what a terminal might obey or hide is escaped."""
    write_line(_NOT_ASCII.sub(_in_json, text))


def write_styled(parts: Sequence[tuple[str, str]], *, cut: bool = False) -> None:
    """Write one line; a pipe ignores the styles, a terminal also cuts the line at its width where ``cut`` is set."""
    terminal = console()
    if terminal is None:
        write_line("".join(text for text, _ in parts))
        return
    from rich.text import Text

    if cut:
        terminal.print(Text.assemble(*parts), no_wrap=True, overflow="ellipsis", soft_wrap=False)
    else:
        terminal.print(Text.assemble(*parts))


def warn(line: str) -> None:
    """Write one line to standard error."""
    sys.stderr.write(f"poller: {line}\n")
    sys.stderr.flush()


def on_terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout.isatty()


def console() -> Console | None:
    """Rich's console; None where standard output is no terminal."""
    if not on_terminal():
        return None
    from rich.console import Console

    return Console(file=sys.stdout, highlight=False, soft_wrap=True)


def width() -> int:
    """Columns of the terminal; no limit for a pipe, whose reader may look for a name that would be shortened."""
    terminal = console()
    return sys.maxsize if terminal is None else max(terminal.width, 1)


def count(number: int, thing: str, things: str = "") -> str:
    """``1 event``, ``2 events``; ``things`` is the plural where that is irregular."""
    return f"{number} {thing if number == 1 else things or thing + 's'}"


def write_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: Sequence[str] = (),
    unbroken: Sequence[str] = (),
) -> None:
    """Write a table whose cells wrap on a narrow terminal.

    Args:
        headings: of the columns.
        rows: as many cells each.
        numbers: columns that are aligned to the right.
        unbroken: columns that do not wrap.
    """
    terminal = console()
    right = [heading in numbers for heading in headings]
    if terminal is None:
        for row in (headings, *rows):
            write_line(_aligned(row, _widths(headings, rows), right))
        return
    from rich import box
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading, least, is_number in zip(headings, _widths(headings, rows), right, strict=True):
        whole = heading in unbroken
        shown.add_column(
            heading,
            justify="right" if is_number else "left",
            overflow="fold",
            no_wrap=whole,
            min_width=least if whole else None,
        )
    for row in rows:
        shown.add_row(*map(Text, row))
    terminal.print(shown)


def _widths(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(headings, *rows, strict=True)]


def _aligned(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    cells = (
        cell.rjust(least) if is_number else cell.ljust(least)
        for cell, least, is_number in zip(row, widths, right, strict=True)
    )
    return _GAP.join(cells).rstrip()


@dataclass(frozen=True, slots=True)
class Column:
    """A column of :func:`table`.

    Attributes:
        heading: over it.
        right: whether it is aligned to the right.
        least: to how many cells it may shrink; None: not at all.
        leave: when it is left out: the column with the highest number first; 0: never.
        styles: the style of a cell by its text.
        cell: the text of what a row shows, see :func:`listing`.
    """

    heading: str
    right: bool = False
    least: int | None = None
    leave: int = 0
    styles: dict[str, str] = field(default_factory=dict)
    cell: Callable[[Any], str] = str


def _cells(text: str) -> int:
    return _measure()(text)


@cache
def _measure() -> Callable[[str], int]:
    from rich.cells import cell_len

    return cell_len


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[Line]:
    """Lines of a table, the headings first; cells are shortened to fit the width."""
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
    lines += [_line(shown, [row[at] for at in kept], widths) for row in rows]
    left_out = ", ".join(column.heading for at, column in enumerate(columns) if at not in kept)
    note = wrapped(f"not shown, too narrow: {left_out}", width) if left_out else ()
    return [*lines, *([(line, "dim")] for line in note)]


def listing(columns: Sequence[Column], items: Iterable[object], width: int) -> list[Line]:
    """Lines of a table with a row for each item, made by the columns' cells."""
    return table(columns, [[column.cell(item) for column in columns] for item in items], width)


def shortened(text: str, width: int) -> str:
    """The text in at most ``width`` cells; a long text loses its middle."""
    if _cells(text) <= width:
        return text
    if width <= 1:
        return _CUT[:width]
    ahead = (width - 1) // 2
    behind = _last(text, width - 1 - ahead)
    return _first(text, width - 1 - _cells(behind)).rstrip() + _CUT + behind


def wrapped(text: str, width: int, *, indent: str = "  ") -> Iterator[str]:
    """The text in lines of at most ``width`` cells, broken between words where possible; all but the first indented."""
    line, ahead = "", ""
    for word in text.split(" "):
        room = f"{line} {word}" if line.strip() else line + word
        if _cells(room) <= width:
            line = room
            continue
        if line.strip():
            yield line
            ahead = indent
        line = ahead + word
        while _cells(line) > width > _cells(indent) + 1:
            head = _first(line, width)
            yield head
            line, ahead = indent + line[len(head) :], indent
    yield line


def _natural(columns: Sequence[Column], rows: Sequence[Sequence[str]], kept: Sequence[int]) -> list[int]:
    return [max(map(_cells, (columns[at].heading, *(row[at] for row in rows)))) for at in kept]


def _shrunk(columns: Sequence[Column], widths: list[int], width: int) -> list[int] | None:
    """Widths that fit; None where they cannot."""
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
    """The same width for each column, on a terminal that is too narrow for anything better."""
    return [max((width - len(_GAP) * (count - 1)) // max(count, 1), 1)] * count


def _line(columns: Sequence[Column], cells: Sequence[str], widths: Sequence[int], *, heading: bool = False) -> Line:
    line: Line = []
    for at, (column, cell, width) in enumerate(zip(columns, cells, widths, strict=True)):
        text = shortened(cell, width)
        pad = " " * (width - _cells(text))
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
    """The longest beginning of at most ``width`` cells."""
    return text[: bisect_right(range(len(text) + 1), width, key=lambda at: _cells(text[:at])) - 1]


def _last(text: str, width: int) -> str:
    """The longest end of at most ``width`` cells."""
    return text[bisect_left(range(len(text) + 1), -width, key=lambda at: -_cells(text[at:])) :]


def legible(raw: bytes, *, indent: int = 2) -> str:
    """Bytes of unknown origin as lines: JSON with each member on its own line; everything else escaped.

    ``indent``: of each level; -1: JSON is one line.
    """
    import msgspec

    try:
        text = msgspec.json.format(raw, indent=indent).decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "\n".join(map(_of_bytes, raw.split(b"\n")))
    return _NOT_ASCII.sub(_in_json, text)


def escaped(text: str) -> str:
    r"""Text of unknown origin as one line: ``\t``, ``\x1b``, ``\u202e`` for what is not printable, ``\\`` for ``\``."""
    return _SUSPECT.sub(_in_text, text)


def _of_bytes(line: bytes) -> str:
    r"""A line with ``\xff`` for each byte that is not UTF-8; different bytes never look the same."""
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
