"""Requests that schemathesis generates from the service's own OpenAPI document, sent to a running daemon.

``python -m tests.web.fuzz --examples 200 --seed 7`` sends more requests than the test does.

The daemon has only the serve role: a delivering one would send handshakes to generated sinks.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from poller.app import run
from poller.clock import Clock
from tests.harness.waiting import until
from tests.servers import free_port, running
from tests.web.served import TOKEN, configured

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


# The service answers 422 or 409 to what a schema cannot express: a header's name, a private host, a subscription of
# the configuration file. A cursor is opaque, so only the service can tell that one is none: 400.
_CONFIG = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", 401, 403, 404, 409, 422]

[[operations]]
include-operation-id = "listRecords"
checks.positive_data_acceptance.expected-statuses = ["2xx", 304, 400, 401, 403, 404, 409, 410]
"""
_PROGRAM = Path(sys.executable).with_name("st")


@asynccontextmanager
async def serving(directory: Path, store_url: str) -> AsyncIterator[str]:
    """The URL of a daemon with the serve role."""
    port = free_port()
    settings = configured(directory, store_url, "filed", http=f'bind = "127.0.0.1:{port}"')
    stop = asyncio.Event()
    roles = frozenset({"serve"})
    daemon = asyncio.create_task(run(settings, {}, stop=stop, clock=Clock(), roles=roles))

    async def answering() -> bool:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        await writer.wait_closed()
        return True

    try:
        await until(answering, "the daemon to listen", despite=(ConnectionRefusedError,))
        yield f"http://127.0.0.1:{port}"
    finally:
        stop.set()
        await daemon


async def fuzzed(directory: Path, url: str, *options: str) -> tuple[int, str]:
    """The exit code of schemathesis (0: no failure found) and its output."""
    (directory / "schemathesis.toml").write_text(_CONFIG, "utf-8")
    command = [str(_PROGRAM), "run", f"{url}/openapi.json", "-H", f"Authorization: Bearer {TOKEN}", *options]
    process = await asyncio.create_subprocess_exec(
        *command,
        *("--exclude-path", "/events"),  # an endless answer
        cwd=directory,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, said.decode("utf-8", "replace")


async def _main(examples: int, seed: int) -> int:
    with TemporaryDirectory(prefix="pf-") as short, running("valkey", Path(short) / "v") as server:
        async with serving(Path(short), server.url) as url:
            found, said = await fuzzed(Path(short), url, "--max-examples", str(examples), "--seed", str(seed))
    sys.stdout.write(said)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    sys.exit(asyncio.run(_main(asked.examples, asked.seed)))
