"""One run of a program of the operator's: no shell, no input, bounded in time and in what is kept of its output.

Law: when the run is over, whichever way, nothing of it is left: the program has a process group of its own, which is
killed when the time is up or the waiting is cancelled.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from io import FileIO
from typing import Final

import msgspec

KEPT: Final = 64 * 1024  # bytes of each output; the rest is read and dropped
_CHUNK: Final = 64 * 1024


class Ended(msgspec.Struct, frozen=True):
    """How a program ended: its exit code (negative: the signal), the beginning of stdout, the end of stderr."""

    code: int
    out: bytes
    err: bytes


async def run(command: Sequence[str], *, within: timedelta) -> Ended:
    """Run a program to its end, which is when it has exited and nobody holds its outputs any more.

    Raises:
        TimeoutError: it took longer.
        OSError, ValueError: it cannot be started.
    """
    async with asyncio.timeout(within.total_seconds()), AsyncExitStack() as stack:
        out, its_out = await stack.enter_async_context(_pipe())
        err, its_err = await stack.enter_async_context(_pipe())
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=its_out, stderr=its_err, start_new_session=True
            )
        finally:
            its_out.close()
            its_err.close()
        try:
            first, last = await asyncio.gather(_head(out), _tail(err))
            return Ended(await process.wait(), first, last)
        except asyncio.CancelledError:
            with suppress(ProcessLookupError, PermissionError):  # macOS says the latter of a group of zombies
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            raise


@asynccontextmanager
async def _pipe() -> AsyncIterator[tuple[asyncio.StreamReader, FileIO]]:
    # Pipes of our own: asyncio's keep a process "running" for as long as any descendant holds one.
    ours, its = (FileIO(end, mode) for end, mode in zip(os.pipe(), "rw", strict=True))
    reader = asyncio.StreamReader()
    with its:
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), ours
        )
        try:
            yield reader, its
        finally:
            transport.close()


async def _head(stream: asyncio.StreamReader) -> bytes:
    kept = b""
    while chunk := await stream.read(_CHUNK):
        kept += chunk[: KEPT - len(kept)]
    return kept


async def _tail(stream: asyncio.StreamReader) -> bytes:
    kept = b""
    while chunk := await stream.read(_CHUNK):
        kept = (kept + chunk)[-KEPT:]
    return kept
