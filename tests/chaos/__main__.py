"""Breaks the program by every fault of the catalogue, and judges whether it keeps its promises.

    python -m tests.chaos --acceptance --seed 1         all faults, 200 kills, 80 pauses, 80 kills of Redis, the control
    python -m tests.chaos --minutes 30 --seed 2         all faults in turn, for 30 minutes
    python -m tests.chaos --only kill,pause --times 50  some faults, 50 times each
    python -m tests.chaos --only kill:3 --acceptance    one chapter of a plan again
    python -m tests.chaos --list                        lists the faults
    python -m tests.chaos --soak --minutes 60 --restart-every 5

The seed determines the plan (--plan), which says what is done when; each chapter is a scene of its own. The table goes
to standard output. Exit code 1 if anything was lost, doubled, misclassified or out of order, or if a naive program was
not caught; the evidence is kept then.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.chaos.catalogue import ACCEPTANCE, FAULTS, MOST, ROWS, USUAL
from tests.chaos.control import CONTROLS
from tests.chaos.outcome import table
from tests.chaos.plan import only, planned
from tests.chaos.run import controlled, missing, played
from tests.chaos.soak import soaked

if TYPE_CHECKING:
    from tests.chaos.plan import Chapter

_MANY = 1000


def main() -> None:
    """Read the command line, run, print."""
    asked = _parser().parse_args()
    if asked.list:
        for fault in FAULTS.values():
            sys.stdout.write(f"{fault.name:<18}{fault.row}: {fault.holds}\n")
        return
    chapters = _chapters(asked)
    if asked.plan:
        sys.stdout.writelines(f"{chapter}\n" for chapter in chapters)
        return
    directory = Path(tempfile.mkdtemp(prefix="pc-"))  # short, because sockets are in it
    if asked.soak:
        sys.exit(not asyncio.run(soaked(directory, minutes=asked.minutes or 60.0, restart_every=asked.restart_every)))
    sys.stderr.write(f"in {directory}; what holds is deleted\n")
    outcomes = asyncio.run(played(chapters, directory, minutes=asked.minutes))
    controls = asyncio.run(controlled(directory, asked.seed)) if asked.acceptance or asked.control else []
    sys.stdout.write(f"`python -m tests.chaos {' '.join(sys.argv[1:])}`\n\n{table(outcomes, ROWS)}\n")
    sys.stdout.write(f"\n{sum(one.refused for one in outcomes)} writes of replaced processes were refused.\n")
    if controls:
        sys.stdout.write(f"\n{table(controls, [control.row for control in CONTROLS])}\n")
    sys.exit(not (all(one.held for one in outcomes) and all(one.caught for one in controls)))


def _chapters(asked: argparse.Namespace) -> list[Chapter]:
    times = dict(ACCEPTANCE if asked.acceptance else USUAL)
    if asked.times is not None or asked.minutes is not None:
        times = dict.fromkeys(times, asked.times or _MANY)
    for name, why in missing().items():
        sys.stderr.write(f"left out: {name}: {why}\n")
        times.pop(name)
    chapters = planned(times, asked.seed, most=MOST)
    try:
        return only(chapters, asked.only.split(",")) if asked.only else chapters
    except ValueError as error:
        sys.exit(str(error))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--acceptance", action="store_true", help="the counts required for a release, and the control")
    parser.add_argument("--control", action="store_true", help="the control as well")
    parser.add_argument("--times", type=int, help="the number of strikes of each fault")
    parser.add_argument("--minutes", type=float, help="start no chapter after this time")
    parser.add_argument("--only", default="", metavar="FAULT[:CHAPTER],…")
    parser.add_argument("--plan", action="store_true", help="print the plan and exit")
    parser.add_argument("--list", action="store_true", help="print the faults and exit")
    parser.add_argument("--soak", action="store_true", help="one long scene under load, with its memory watched")
    parser.add_argument("--restart-every", type=float, default=5.0, metavar="MINUTES", help="of Redis, in a soak")
    return parser


if __name__ == "__main__":
    main()
