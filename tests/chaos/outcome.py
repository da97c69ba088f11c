"""The outcome of a chapter, and the table of all outcomes. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tests.chaos.plan import Chapter
    from tests.harness.checker import Verdict
    from tests.harness.delivered import Deliveries

_OF_STREAMS = ("lost", "doubled", "misclassified", "out of order")
_OF_SINKS = ("requests", "again", "forgotten", "lost", "wrong", "out of order")
COLUMNS = ("times", "changes", *_OF_STREAMS, *_OF_SINKS, "other")
_BAD = (2, 3, 4, 5, 9, 10, 11, 12)
IN_FLIGHT = 8
"""How many requests a process may have in flight to a sink when it is suspended."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a chapter.

    Attributes:
        chapter: which.
        row: the fault's row of the table.
        changes: how many versions the source has made.
        stream: the verdict on the streams; None if the chapter failed before it.
        sinks: the verdict on each sink.
        woken: how often a replaced process may have continued.
        remarks: other findings.
        refused: how many writes of replaced processes were refused.
        seconds: how long it took.
    """

    chapter: Chapter
    row: str
    changes: int = 0
    stream: Verdict | None = None
    sinks: Mapping[str, Deliveries] = field(default_factory=dict)
    woken: int = 0
    remarks: Sequence[str] = ()
    refused: int = 0
    seconds: float = 0.0

    @property
    def held(self) -> bool:
        return not any(self.figures()[place] for place in _BAD)

    @property
    def caught(self) -> bool:
        """Whether the judge of the streams found something; other findings prove nothing."""
        return self.stream is not None and not self.stream.clean

    def figures(self) -> list[int]:
        """One figure for each column."""
        stream, sinks = self.stream, list(self.sinks.values())
        of_stream = [0] * 4
        if stream is not None:
            of_stream = [len(one) for one in (stream.lost, stream.doubled, stream.misclassified, stream.gaps)]
        requests, again = sum(one.requests for one in sinks), sum(len(one.repeats) for one in sinks)
        forgotten = sum(one.forgotten for one in sinks)
        lost = sum(len(one.lost) for one in sinks)
        wrong = sum(_wrong(one) for one in sinks)
        disorder = sum(self._disorder(one) for one in sinks)
        figures = [
            len(self.chapter.strikes),
            self.changes,
            *of_stream,
            requests,
            again,
            forgotten,
            lost,
            wrong,
            disorder,
        ]
        return [*figures, len(self.remarks)]

    def _disorder(self, sink: Deliveries) -> int:
        """Faults of order beyond those that a process resumed in the middle of sending may cause."""
        allowed = IN_FLIGHT * self.woken
        begun_before = (len(sink.late), len(sink.crowded), len(sink.needless))
        return len(sink.out_of_order) + sum(max(count - allowed, 0) for count in begun_before)

    def __str__(self) -> str:
        figures = ", ".join(f"{name} {figure}" for name, figure in zip(COLUMNS, self.figures(), strict=True) if figure)
        figures += f", refused {self.refused}" if self.refused else ""
        lines = [f"{self.chapter.name}: {'held' if self.held else 'NOT HELD'} in {self.seconds:.0f} s: {figures}"]
        if not self.held:
            lines += [*self.remarks, str(self.stream), *(f"{name}: {one}" for name, one in self.sinks.items())]
        return "\n".join(lines)


def table(outcomes: Iterable[Outcome], rows: Sequence[str]) -> str:
    """A Markdown table of the outcomes, one line for each row and one for the total."""
    figures: defaultdict[str, list[int]] = defaultdict(lambda: [0] * len(COLUMNS))
    for outcome in outcomes:
        for name in (outcome.row, ""):
            figures[name] = [old + new for old, new in zip(figures[name], outcome.figures(), strict=True)]
    return "\n".join(_lines(figures, [row for row in rows if row in figures]))


def _lines(figures: Mapping[str, Sequence[int]], rows: Sequence[str]) -> Iterator[str]:
    yield (
        "| fault | times | changes | "
        + " | ".join((*_headed("streams", _OF_STREAMS), *_headed("webhooks", _OF_SINKS)))
        + " | other |"
    )
    yield "|---|" + "---:|" * len(COLUMNS)
    for row in rows:
        yield _line(row, figures[row])
    yield _line("**in all**", figures[""])


def _headed(whose: str, columns: Sequence[str]) -> tuple[str, ...]:
    return f"{whose}: {columns[0]}", *columns[1:]


def _line(name: str, figures: Sequence[int]) -> str:
    return f"| {name} | " + " | ".join(f"{figure:,}".replace(",", " ") for figure in figures) + " |"


def _wrong(sink: Deliveries) -> int:
    kinds = (sink.renamed, sink.altered, sink.forged, sink.unwanted, sink.early, sink.uncalled)
    return sum(len(kind) for kind in kinds)
