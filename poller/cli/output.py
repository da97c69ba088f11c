"""Standard output: colours and boxes for a terminal, plain and stable text for a pipe.

``NO_COLOR`` is respected. Every line is written at once, for somebody may be waiting for it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from rich.console import Console


class ReaderGone(Exception):
    """Whoever read our output has left: ``poller tail | head``. No fault of anybody."""


def say(line: str) -> None:
    """Write one line as it is.

    Raises:
        ReaderGone: nobody reads any more.
    """
    try:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise ReaderGone from None


def say_bytes(raw: bytes) -> None:
    """Write exactly these bytes.

    Raises:
        ReaderGone: nobody reads any more.
    """
    try:
        sys.stdout.buffer.write(raw)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise ReaderGone from None


def say_json(value: object) -> None:
    """Write one line of JSON."""
    say(msgspec.json.encode(value).decode())


def warn(line: str) -> None:
    """Write one line to standard error."""
    sys.stderr.write(f"poller: {line}\n")
    sys.stderr.flush()


def on_terminal() -> bool:
    """Whether a person is looking at standard output."""
    return sys.stdout.isatty()


def console() -> Console | None:
    """Rich's console where standard output is a terminal."""
    if not on_terminal():
        return None
    from rich.console import Console  # noqa: PLC0415 -- late, and only for terminals

    return Console(file=sys.stdout, highlight=False, soft_wrap=True)


def width() -> int:
    """How many columns there are to write to; 80 where nobody looks."""
    terminal = console()
    return 80 if terminal is None else max(terminal.width, 1)


def say_styled(parts: Sequence[tuple[str, str]], *, cut: bool = False) -> None:
    """Write one line made of ``(text, style)``; on a terminal alone the styles count, and ``cut``: at its width."""
    terminal = console()
    if terminal is None:
        say("".join(text for text, _ in parts))
        return
    from rich.text import Text  # noqa: PLC0415 -- late, and only for terminals

    if cut:
        terminal.print(Text.assemble(*parts), no_wrap=True, overflow="ellipsis", soft_wrap=False)
    else:
        terminal.print(Text.assemble(*parts))


def say_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: Sequence[str] = (),
    unbroken: Sequence[str] = (),
) -> None:
    """Write a table; the columns named in ``numbers`` are aligned to the right.

    Where a terminal is too narrow cells go on in further lines, but not those of the columns in ``unbroken``.
    """
    terminal = console()
    right = [heading in numbers for heading in headings]
    if terminal is None:
        for row in (headings, *rows):
            say(_aligned(row, _widths(headings, rows), right))
        return
    from rich import box  # noqa: PLC0415 -- late, and only for terminals
    from rich.table import Table  # noqa: PLC0415 -- late, and only for terminals
    from rich.text import Text  # noqa: PLC0415 -- late, and only for terminals

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading, width, is_number in zip(headings, _widths(headings, rows), right, strict=True):
        whole = heading in unbroken
        table.add_column(
            heading,
            justify="right" if is_number else "left",
            overflow="fold",
            no_wrap=whole,
            min_width=width if whole else None,
        )
    for row in rows:
        table.add_row(*map(Text, row))
    terminal.print(table)


def _widths(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(headings, *rows, strict=True)]


def _aligned(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    cells = (
        cell.rjust(width) if is_number else cell.ljust(width)
        for cell, width, is_number in zip(row, widths, right, strict=True)
    )
    return "  ".join(cells).rstrip()
