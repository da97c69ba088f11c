"""Laws of :mod:`poller.cli.tables`: nothing is wider than was asked for, whatever stands in it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from poller.cli.tables import Column, Line, shortened, table, wrapped

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
    """Long names and wide characters included, on terminals of any width."""
    for line in table(COLUMNS, rows, width):
        assert cell_len(text(line)) <= width


@given(TEXTS, st.integers(4, 100))
def test_no_line_of_a_paragraph_is_wider(words: str, width: int) -> None:
    """And no letter of it is lost."""
    lines = list(wrapped(words, width))
    assert all(cell_len(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(words.split())


@given(TEXTS, st.integers(0, 60))
def test_what_is_shortened_fits_and_what_fits_is_left_alone(words: str, width: int) -> None:
    """The law of a cell."""
    short = shortened(words, width)
    assert cell_len(short) <= width
    assert (short == words) is (cell_len(words) <= width)


def test_the_widest_gives_way_and_then_columns_go() -> None:
    """What may shrink does so before a column is left out; that which goes first is the one of the highest number."""
    row = ("acme/employmentUnavailabilities", "failing", "150000", "59 min")
    assert [text(line) for line in table(COLUMNS, [row], 46)] == [
        "feed                  state    records     lag",
        "acme/empl…labilities  failing   150000  59 min",
    ]
    assert text(table(COLUMNS, [row], 30)[0]).split() == ["feed", "state", "lag"]
    assert text(table(COLUMNS, [row], 20)[0]).split() == ["feed", "state"]


def test_a_style_is_the_cells_own() -> None:
    """It goes by the text of the cell, cut or not."""
    [_, line] = table((Column("state", styles={"ok": "green"}), Column("x")), [("ok", "ok")], 20)
    assert [(part.strip(), style) for part, style in line if part.strip()] == [("ok", "green"), ("ok", "")]
