"""Runs a scene from the command line, longer than a test may take, and prints a table of the results."""

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
    """Read the command line, run the scene in a temporary directory, and print the result.

    Args:
        description: of the program.
        option: the name of the option with the count.
        times: the default count.
        scene: is called with the directory, the count and the seed.
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
