"""Which outcomes count as held, and how they are reported."""

from __future__ import annotations

from dataclasses import replace

from tests.chaos.outcome import Outcome, table
from tests.chaos.plan import Chapter, Strike
from tests.harness.checker import Verdict
from tests.harness.delivered import Deliveries, Fault

_CHAPTER = Chapter("kill", 1, 7, (Strike(1, 0.1, 3), Strike(2, 0.2, 4)))
_GOOD = Outcome(_CHAPTER, "killed", 30, Verdict(40), {"one": Deliveries(requests=50, events=40)})


def _late(count: int) -> Deliveries:
    return Deliveries(requests=50, events=40, late=[Fault(1.0, "late")] * count)


def test_one_fault_anywhere_is_enough() -> None:
    """One fault in the streams, at a sink, or in the remarks means that the chapter does not hold."""
    assert _GOOD.held
    assert not _GOOD.caught
    lost = replace(_GOOD, stream=Verdict(40, lost=["a record"]))
    assert not lost.held
    assert lost.caught
    assert not replace(_GOOD, sinks={"one": Deliveries(altered=[Fault(1.0, "other")])}).held
    assert not replace(_GOOD, remarks=("exited with 1",)).held


def test_who_wakes_may_end_what_it_had_begun() -> None:
    """A resumed process may repeat as many requests as were in flight; an event out of order is never allowed."""
    assert not replace(_GOOD, sinks={"one": _late(1)}).held
    assert replace(_GOOD, sinks={"one": _late(8)}, woken=1).held
    assert not replace(_GOOD, sinks={"one": _late(9)}, woken=1).held
    early = Deliveries(out_of_order=[Fault(1.0, "too early")])
    assert not replace(_GOOD, sinks={"one": early}, woken=1).held


def test_a_chapter_that_did_not_end_neither_holds_nor_catches() -> None:
    """A chapter whose scene failed neither holds nor catches; the error is a remark."""
    broken = Outcome(_CHAPTER, "killed", remarks=("no sandbox",))
    assert not broken.held
    assert not broken.caught


def test_the_table_adds_up() -> None:
    """The table has a line for each row, in the requested order, and one for the total."""
    other = replace(_GOOD, row="stopped", changes=1_000)
    lines = table([_GOOD, other, _GOOD], ["stopped", "killed", "never"]).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["stopped", "killed", "**in all**"]
    assert "| killed | 4 | 60 | 0 | 0 | 0 | 0 | 100 |" in lines[3]
    assert "| 6 | 1 060 |" in lines[4]
    assert len({line.count("|") for line in lines}) == 1
