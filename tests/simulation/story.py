"""What happened in a run: a trace for comparing two runs, and a timeline in words for reading.

**Invariants**

- The trace has everything that one run could do otherwise than another: what was sent, what the store was told, what
  the program logged, what was done to it. Two runs are the same if their traces are.
- The story leaves out what goes well again and again: it is written for who looks for the cause of a failure.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, MutableMapping

WORLD: Final = "-"
_ROUTINE: Final = frozenset({"attempt", "round"})
_SUBJECT: Final = ("feed", "subscription", "mode", "step", "status", "error", "reason", "advice", "member")
_LONGEST: Final = 300


class Chronicle:
    """The trace and the story of one run.

    Attributes:
        trace: one line for each thing: seconds, host, what.
        lines: how many lines the trace has, kept or not.
        story: the lines for people.
        keeps: whether the trace is kept, and not only its digest.
        traces: whether there is a trace: a twentieth of the cost of a run.
    """

    def __init__(self, now: Callable[[], float], *, keeps: bool = False, traces: bool = True) -> None:
        """Begin; ``now`` tells the seconds since the start."""
        self._now = now
        self.traces = traces
        self._digest = hashlib.blake2b(digest_size=16)
        self.keeps = keeps
        self.trace: list[str] = []
        self.lines = 0
        self.story: list[str] = []

    def note(self, host: str, what: str) -> None:
        """Add a line to the trace."""
        if not self.traces:
            return
        line = f"{self._now():.6f} {host} {what}"
        self._digest.update(line.encode() + b"\n")
        self.lines += 1
        if self.keeps:
            self.trace.append(line)

    def tell(self, host: str, what: str) -> None:
        """Add a line to the trace and to the story."""
        self.note(host, what)
        self.story.append(f"{self._now():10.3f}  {host:<9}  {what}")

    def log(self, host: str, event: Mapping[str, Any]) -> None:
        """Add a line of the program's log."""
        text = _worded(event)
        routine = event.get("event") in _ROUTINE and event.get("ok", True) is not False
        if routine or event.get("level") == "debug":
            self.note(host, f"log {text}")
        else:
            self.tell(host, f"log {text}")

    @property
    def digest(self) -> str:
        """The same for two runs with the same trace; "-": there is none."""
        if not self.traces:
            return "-"
        return self._digest.hexdigest()


def _worded(event: Mapping[str, Any]) -> str:
    """An event of the log on one line: what it is about first."""
    level = event.get("level", "info")
    shown = [name for name in _SUBJECT if event.get(name) not in (None, "", 0)]
    others = sorted(name for name in event if name not in (*_SUBJECT, "event", "level"))
    fields = " ".join(f"{name}={event[name]!r}" for name in (*shown, *others))
    return f"{level}: {event.get('event')} {fields}"[:_LONGEST]


def logs_to(log: Callable[[Mapping[str, Any]], None]) -> None:
    """Send the program's log here and nowhere else, until it is set up again."""

    def note(_logger: Any, level: str, event: MutableMapping[str, Any]) -> Any:
        log({**event, "level": level})
        raise structlog.DropEvent

    structlog.configure(processors=[note], cache_logger_on_first_use=False)


def told(story: Iterable[str], *, most: int = 400) -> str:
    """The story as one text; where it is long, its middle is left out."""
    lines = list(story)
    if len(lines) > most:
        left = len(lines) - most
        lines = [*lines[: most // 2], f"{'':>12}… {left} lines …", *lines[-most // 2 :]]
    return "\n".join(lines)
