"""Break the program, and see whether it keeps its promises: ``python -m tests.chaos --acceptance --seed 1``."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.chaos.catalogue import ACCEPTANCE, FAULTS, MOST, ROWS, SHORT
from tests.chaos.outcome import table
from tests.chaos.plan import only, planned
from tests.chaos.playing import play

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.chaos.outcome import Outcome
    from tests.chaos.plan import Chapter


async def played(chapters: Sequence[Chapter], directory: Path, seed: int) -> list[Outcome]:
    """Play them one after the other, and say after each what came of it."""
    outcomes = []
    for number, chapter in enumerate(chapters, start=1):
        fault = FAULTS[chapter.fault]
        outcome = await play(chapter, fault, directory / chapter.name.replace(":", "-"))
        outcomes.append(outcome)
        sys.stderr.write(f"{number}/{len(chapters)} {outcome}\n")
        if not outcome.held:
            sys.stderr.write(f"  {chapter}\n")
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--acceptance", action="store_true")
    parser.add_argument("--times", type=int)
    parser.add_argument("--only", default="")
    parser.add_argument("--plan", action="store_true")
    asked = parser.parse_args()
    times = ACCEPTANCE if asked.acceptance else SHORT
    if asked.times:
        times = dict.fromkeys(times, asked.times)
    chapters = planned(times, asked.seed, most=MOST)
    if asked.only:
        chapters = only(chapters, asked.only.split(","))
    if asked.plan:
        sys.stdout.write("\n".join(map(str, chapters)) + "\n")
        return
    directory = Path(tempfile.mkdtemp(prefix="pc-"))
    outcomes = asyncio.run(played(chapters, directory, asked.seed))
    sys.stdout.write(table(outcomes, ROWS) + "\n")
    sys.exit(not all(outcome.held for outcome in outcomes))


if __name__ == "__main__":
    main()
