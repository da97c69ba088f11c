"""Run measures and print them: ``python -m tests.bench WHAT``.

With ``--check``, the command fails if a ratio is below half of the one that is wanted in three runs out of three.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
from collections.abc import Generator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from poller.cli.options import run_loop
from poller.cli.run import COLLECT_AFTER
from tests.bench.backfill import backfills
from tests.bench.deliveries import deliveries
from tests.bench.figures import Figure, many_listings, peak_rss, reading
from tests.bench.idle import idle
from tests.bench.metering import metering
from tests.bench.naive import naive
from tests.bench.receiver import receiver
from tests.bench.rotation import rotating
from tests.bench.scale import scale
from tests.bench.scene import sandbox, short_directory
from tests.servers import Server, running

_MIB = 1024 * 1024
_QUALIFICATIONS = 2_000
_MANY = ("--qualifications", str(_QUALIFICATIONS))
_CHECKS = 3
# A rewrite of the log is a third process on two cores, and comes at another moment in each run.
_NO_REWRITE = {"auto-aof-rewrite-percentage": "0"}


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    arguments.add_argument("--records", type=int, default=200_000, help="records in the sandbox (default: 200000)")
    arguments.add_argument("--backlog", type=int, default=200_000, help="events that wait for a sink (default: 200000)")
    arguments.add_argument("what", nargs="?", choices=tuple(_MEASURES), default="readings")
    arguments.add_argument("--check", action="store_true", help="fail below half of a wanted ratio")
    asked = arguments.parse_args()
    gc.freeze()  # as in the daemon
    gc.set_threshold(COLLECT_AFTER)
    console = Console(width=None if os.isatty(1) else 170, highlight=False)
    table = Table("what", "measured", "raw limit in the same run", "ratio", "wanted", box=None, pad_edge=False)
    figures: list[Figure] = []
    low: list[str] = []
    for _ in range(_CHECKS if asked.check else 1):
        with tempfile.TemporaryDirectory() as directory:
            figures = list(_MEASURES[asked.what](asked, Path(directory)))
        low = [figure.name for figure in figures if figure.is_low]
        if not low:
            break
    for figure in figures:
        ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
        table.add_row(figure.name, figure.value, figure.limit, ratio, figure.wanted)
    console.print(table)
    if asked.check and low:
        sys.exit(f"below half of what is wanted: {', '.join(low)}")


def measured(asked: argparse.Namespace, root: Path) -> list[Figure]:
    """All figures, server and sandbox of their own."""

    async def all_readings(api_url: str) -> list[Figure]:
        with running("valkey", short_directory(root, "a"), appendfsync="everysec", options=_NO_REWRITE) as server:
            return [figure async for figure in reading(api_url, server)]

    async def all_listings(api_url: str) -> list[Figure]:
        with running("valkey", short_directory(root, "c"), appendfsync="everysec") as server:
            return [figure async for figure in many_listings(api_url, server)]

    records = int(asked.records)
    with running("valkey", short_directory(root, "b"), appendfsync="everysec") as server:
        with sandbox(records // 10) as api_url:
            small = peak_rss(api_url, server)
        with sandbox(records) as api_url:
            figures = run_loop(all_readings(api_url))
            large = peak_rss(api_url, server)
        with sandbox(min(records, 40_000), *_MANY) as api_url:
            figures += run_loop(all_listings(api_url))
    growth = Figure(
        f"peak RSS reading {records} records twice",
        f"{large / _MIB:.0f} MiB",
        f"with {records // 10} records {small / _MIB:.0f} MiB",
        large / small,
        "1.0",
    )
    return [*figures, growth]


def compared(asked: argparse.Namespace, root: Path) -> list[Figure]:
    """The program beside a script of forty lines."""

    def servers() -> Generator[Server]:
        for number in count():
            place = short_directory(root, f"s{number}")
            with running("valkey", place, appendfsync="everysec", options=_NO_REWRITE) as server:
                yield server

    async def all_of(api_url: str) -> list[Figure]:
        with closing(servers()) as one_after_the_other:
            return [figure async for figure in naive(api_url, one_after_the_other)]

    with sandbox(asked.records) as api_url:
        return run_loop(all_of(api_url))


def rotations(asked: argparse.Namespace, root: Path) -> list[Figure]:
    """The figures of a feed with many listings, at a rate, with the real daemon."""

    async def all_of(api_url: str, server: Server) -> list[Figure]:
        return [figure async for figure in rotating(api_url, server, root, qualifications=_QUALIFICATIONS, rate=50)]

    server = running("valkey", short_directory(root, "a"), appendfsync="everysec")
    with server as started, sandbox(min(asked.records, 40_000), *_MANY) as api_url:
        return run_loop(all_of(api_url, started))


def delivered(asked: argparse.Namespace, root: Path) -> list[Figure]:
    """The figures of deliveries, with the real daemon."""

    async def all_of(server: Server, url: str) -> list[Figure]:
        return [figure async for figure in deliveries(server, url, root, backlog=asked.backlog)]

    with running("valkey", short_directory(root, "a"), appendfsync="everysec") as server, receiver() as url:
        return run_loop(all_of(server, url))


def backfilled(asked: argparse.Namespace, root: Path) -> list[Figure]:
    """The figures of backfills, with the real daemon."""

    async def all_of() -> list[Figure]:
        return [figure async for figure in backfills(root, records=asked.records // 2)]

    return run_loop(all_of())


def scaled(_asked: argparse.Namespace, root: Path) -> list[Figure]:
    """The figures of many feeds, processes, records and subscriptions."""

    async def all_of() -> list[Figure]:
        return [figure async for figure in scale(root)]

    return run_loop(all_of())


def idling(_asked: argparse.Namespace, root: Path) -> list[Figure]:
    """The figures of starts, and of daemons to which nothing happens."""

    async def all_of() -> list[Figure]:
        return [figure async for figure in idle(root)]

    return run_loop(all_of())


def metered(_asked: argparse.Namespace, root: Path) -> list[Figure]:
    """What it costs to be measured."""

    async def all_of(server: Server) -> list[Figure]:
        return [figure async for figure in metering(server)]

    with running("valkey", short_directory(root, "a"), appendfsync="no") as server:
        return run_loop(all_of(server))


_MEASURES: Final = {
    "readings": measured,
    "naive": compared,
    "rotation": rotations,
    "deliveries": delivered,
    "backfill": backfilled,
    "scale": scaled,
    "metrics": metered,
    "idle": idling,
}

if __name__ == "__main__":
    main()
