"""Run all measures and print them: ``python -m tests.bench [--records N]``."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from poller.cli.loop import run
from tests.bench.figures import Figure, peak_rss, reading
from tests.bench.scene import sandbox, short_directory
from tests.servers import running

_MIB = 1024 * 1024


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    arguments.add_argument("--records", type=int, default=200_000, help="records in the sandbox (default: 200000)")
    records = arguments.parse_args().records
    console = Console(width=None if os.isatty(1) else 170, highlight=False)
    table = Table("what", "measured", "raw limit in the same run", "ratio", "wanted", box=None, pad_edge=False)
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for figure in measured(records, root):
            ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
            table.add_row(figure.name, figure.value, figure.limit, ratio, figure.wanted)
    console.print(table)


def measured(records: int, root: Path) -> list[Figure]:
    """All figures, server and sandbox of their own."""

    async def all_readings(api_url: str) -> list[Figure]:
        with running("valkey", short_directory(root, "a"), appendfsync="everysec") as server:
            return [figure async for figure in reading(api_url, server)]

    here = Path.cwd()
    with running("valkey", short_directory(root, "b"), appendfsync="everysec") as server:
        with sandbox(records // 10) as api_url:
            small = peak_rss(api_url, server, here)
        with sandbox(records) as api_url:
            figures = run(all_readings(api_url))
            large = peak_rss(api_url, server, here)
    growth = Figure(
        f"peak RSS reading {records} records twice",
        f"{large / _MIB:.0f} MiB",
        f"with {records // 10} records {small / _MIB:.0f} MiB",
        large / small,
        "1.0",
    )
    return [*figures, growth]


if __name__ == "__main__":
    main()
