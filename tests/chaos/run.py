"""Runs chapters one after the other, and reports each when it has ended."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from tests.chaos.catalogue import FAULTS
from tests.chaos.control import CONTROLS, play_control
from tests.chaos.playing import play

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.chaos.outcome import Outcome
    from tests.chaos.plan import Chapter


def missing() -> dict[str, str]:
    """The faults that are impossible on this machine, with the reason."""
    reasons = {name: fault.missing() for name, fault in FAULTS.items()}
    return {name: reason for name, reason in reasons.items() if reason is not None}


async def played(chapters: Sequence[Chapter], directory: Path, *, minutes: float | None = None) -> list[Outcome]:
    """Run them; none is started after this many minutes."""
    began, outcomes = time.monotonic(), []
    for number, chapter in enumerate(chapters, start=1):
        if minutes is not None and time.monotonic() - began > 60 * minutes:
            break
        outcome = await play(chapter, FAULTS[chapter.fault], directory / chapter.name.replace(":", "-"))
        outcomes.append(outcome)
        of = "" if minutes else f" of {len(chapters)}"
        sys.stderr.write(f"{number}{of} {outcome}\n" + ("" if outcome.held else f"{chapter}\n"))
    return outcomes


async def controlled(directory: Path, seed: int) -> list[Outcome]:
    """Run the control."""
    outcomes = []
    for control in CONTROLS:
        outcome = await play_control(control, directory / f"control-{control.first}-{control.fault}", seed)
        outcomes.append(outcome)
        sys.stderr.write(f"{control.row}: {'caught' if outcome.caught else f'NOT CAUGHT {outcome}'}\n")
    return outcomes
