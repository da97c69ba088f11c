"""Laws of :mod:`poller.cli.output`: lines on a terminal and on a pipe, tables, and foreign text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from poller.cli.output import Column, Line, escaped, legible, shortened, table, wrapped, write_json

LINE = "0123456789" * 9 + "介"


def on_terminal(program: str) -> str:
    """What a program writes to a terminal."""
    ours, theirs = os.openpty()
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        try:
            environ = {"COLUMNS": "40", "TERM": "xterm", "NO_COLOR": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
            subprocess.run([sys.executable, "-c", program], stdout=theirs, env=environ, check=True)
            written = b""
            while not written.endswith(b"\n"):
                written += terminal.read(4096)
            return written.decode()
        finally:
            os.close(theirs)


@pytest.mark.parametrize(("cut", "shown"), [(True, LINE[:39] + "…"), (False, LINE)])
def test_a_long_line(cut: bool, shown: str) -> None:
    """With ``cut`` a line ends at the terminal's width; without, the terminal wraps the whole line."""
    program = f"from poller.cli.output import write_styled; write_styled([({LINE!r}, '')], cut={cut})"
    assert on_terminal(program) == shown + "\r\n"


def test_a_reader_that_leaves_is_no_error() -> None:
    """When the reader of a pipe leaves, as with ``| head``, the program ends with 0 and without a message."""
    theirs, ours = os.pipe()
    os.close(theirs)
    program = "from poller.cli.app import exit_code; from poller.cli.output import write_line; import sys\n"
    program += "sys.exit(exit_code(lambda: write_line('line') or 0))"
    try:
        done = subprocess.run(
            [sys.executable, "-c", program],
            stdout=ours,
            stderr=subprocess.PIPE,
            env={"PYTHONPATH": os.pathsep.join(sys.path)},
            check=False,
        )
    finally:
        os.close(ours)
    assert (done.returncode, done.stderr) == (0, b"")


def test_each_line_is_flushed() -> None:
    """A line is written to a pipe when it is produced, and not when the program ends."""
    program = "from poller.cli.output import write_line; import sys\nwrite_line('line'); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        assert running.stdout.readline() == b"line\n"
        running.stdin.close()


json_values = st.dictionaries(
    st.text(), st.none() | st.integers() | st.text() | st.lists(st.text(), max_size=2), max_size=3
)

encodable = st.text(st.characters(exclude_categories=["Cs"]))


def harmless(text: str) -> bool:
    return all(letter.isprintable() for letter in text.replace("\n", ""))


@given(st.binary())
def test_any_bytes_are_shown_safely(raw: bytes) -> None:
    """Whatever was received, every character that is shown is printable, except line breaks."""
    assert harmless(legible(raw))


@given(json_values)
def test_json_stays_json(value: object) -> None:
    """JSON is shown as JSON of the same value."""
    raw = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    shown = legible(raw)
    assert harmless(shown)
    assert json.loads(shown) == value


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"]))
    )
)
@example({"name": "\x9b31m\u202e\u2028\x7f"})
def test_a_line_of_json_is_one_harmless_line(value: dict[str, str]) -> None:
    """A line of JSON has no control characters, whatever a value holds, and decodes to the same value."""
    with redirect_stdout(StringIO()) as written:
        write_json(value)
    line = written.getvalue().removesuffix("\n")
    assert line.isprintable()
    assert json.loads(line) == value


@given(st.text())
def test_escaped_text_is_one_harmless_line(text: str) -> None:
    """Escaped text stays in its line, and two texts never look the same."""
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
        (b"[" * 100_000 + b"]" * 100_000, "[" * 100_000 + "]" * 100_000),
        (b"", ""),
    ],
)
def test_what_is_shown(raw: bytes, shown: str) -> None:
    """JSON is laid out with its numbers and repeated keys as received; what is not JSON is escaped."""
    assert legible(raw) == shown


TEXTS = st.text(st.characters(categories=("L", "N", "P", "Zs"), exclude_characters="\xa0"), max_size=60)
COLUMNS = (
    Column("feed", least=8),
    Column("state"),
    Column("records", right=True, leave=2),
    Column("lag", right=True, leave=1),
)


def text(line: Line) -> str:
    return "".join(part for part, _ in line)


@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS, TEXTS), max_size=4), st.integers(10, 100))
def test_no_line_of_a_table_is_wider(rows: list[tuple[str, ...]], width: int) -> None:
    """No line of a table is wider than the terminal, with long names and wide characters."""
    for line in table(COLUMNS, rows, width):
        assert cell_len(text(line)) <= width


@given(TEXTS, st.integers(4, 100))
def test_no_line_of_a_paragraph_is_wider(words: str, width: int) -> None:
    """No line of a paragraph is wider than the terminal, and no letter is lost."""
    lines = list(wrapped(words, width))
    assert all(cell_len(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(words.split())


@given(TEXTS, st.integers(0, 60))
def test_a_shortened_cell_fits(words: str, width: int) -> None:
    """A shortened cell fits; a cell that fits is unchanged."""
    short = shortened(words, width)
    assert cell_len(short) <= width
    assert (short == words) is (cell_len(words) <= width)


def test_columns_shrink_before_one_is_left_out() -> None:
    """Columns shrink before one is left out; the column with the highest number goes first."""
    row = ("acme/employmentUnavailabilities", "failing", "150000", "59 min")
    assert [text(line) for line in table(COLUMNS, [row], 46)] == [
        "feed                  state    records     lag",
        "acme/empl…labilities  failing   150000  59 min",
    ]
    heading, _, note = table(COLUMNS, [row], 30)
    assert text(heading).split() == ["feed", "state", "lag"]
    assert text(note) == "not shown, too narrow: records"
    assert text(table(COLUMNS, [row], 20)[0]).split() == ["feed", "state"]


def test_a_style_depends_on_the_whole_text() -> None:
    """The style depends on the whole text of the cell, even where it is shortened."""
    [_, line] = table((Column("state", styles={"ok": "green"}), Column("x")), [("ok", "ok")], 20)
    assert [(part.strip(), style) for part, style in line if part.strip()] == [("ok", "green"), ("ok", "")]
