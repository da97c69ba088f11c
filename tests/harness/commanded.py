"""Scenes that are also run by hand, much longer than a test may take: so often, by a seed, with a table in the end."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")


def commanded(
    description: str | None,
    option: str,
    times: int,
    scene: Callable[[Path, int, int], Coroutine[Any, Any, T]],
    *,
    well: Callable[[T], bool],
) -> None:
    """Read the command line, play the scene in a directory of its own, print what came of it.

    Args:
        description: of the program.
        option: what is counted.
        times: how often, where the command line does not say.
        scene: is told the directory, how often, and the seed.
        well: whether all is; else the exit code is 1.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(f"--{option}", dest="times", type=int, default=times)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        tally = asyncio.run(scene(Path(directory), asked.times, asked.seed))
    sys.stdout.write(f"{tally}\n")
    sys.exit(not well(tally))
