"""The demo's receiver of webhooks: a process of its own, as a customer's would be, and what it reports.

Law: it is gone when the block is left, and ends by itself when this process dies, for its standard input ends then.

Knows where the program is and what a line of its report means; whether events are missing is the ledger's question.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from poller.cli.lines import Event
from poller.errors import PollerError
from poller.sandbox import receiver

_LAST_WORDS: Final = 2.0  # seconds to end by itself
_LONGEST_LINE: Final = 1024 * 1024  # bytes; a record of the sandbox has a thousandth


class Report(msgspec.Struct, frozen=True):
    """One request.

    Attributes:
        at: when it came, UTC.
        event: what it carried; None where it was refused.
        refused: why its signature does not verify; None where it does.
    """

    at: datetime
    event: Event | None = None
    refused: str | None = None


_read: Final = msgspec.json.Decoder(Report).decode


class Receiver:
    """The running process.

    Attributes:
        url: where it listens.
    """

    def __init__(self, url: str, lines: asyncio.StreamReader) -> None:
        self.url = url
        self._lines = lines

    async def reports(self) -> AsyncIterator[Report]:
        """What it reports, in the order in which it answered; ends with the process."""
        while line := await self._lines.readline():
            yield _read(line)


@asynccontextmanager
async def receiving(secret_file: Path) -> AsyncIterator[Receiver]:
    """A receiver while the block runs.

    Raises:
        PollerError: it does not start.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",  # whatever lies in the directory that we were started in
        receiver.__file__,
        str(secret_file),
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL,
        limit=_LONGEST_LINE,
        start_new_session=True,  # Ctrl-C is ours: it still has to take what is on its way
    )
    try:
        lines = process.stdout
        url = (await lines.readline()).decode().strip() if lines else ""
        if lines is None or not url:
            raise PollerError("the webhook receiver did not start")
        yield Receiver(url, lines)
    finally:
        await _end(process)


async def _end(process: Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(_LAST_WORDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
