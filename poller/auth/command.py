"""Tokens printed by a program of the operator, run without shell and input, with limits of time and output.

**Invariants**

* A run leaves no process: the program has its own process group, which is killed at the time limit or when the caller
  is cancelled.
* The first line of standard output is the token; the rest is ignored. An error shows only the name of the program,
  neither its arguments nor its output, which may contain a recent token.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from io import FileIO
from pathlib import Path
from typing import Final

import msgspec

from poller.auth.base import Credential, CredentialParts, Issued, IssuedToken, Issuer, checked
from poller.errors import CredentialUnusable
from poller.text import is_secret_path

KEPT: Final = 64 * 1024  # bytes of each output; the rest is read and discarded
_CHUNK: Final = 64 * 1024


class ProgramOutput(msgspec.Struct, frozen=True):
    """The result of a program: exit code (negative: the signal), start of stdout, end of stderr."""

    code: int
    out: bytes
    err: bytes


async def run(command: Sequence[str], *, within: timedelta) -> ProgramOutput:
    """Run a program until it has exited and its outputs are closed.

    Raises:
        TimeoutError: the program took longer.
        OSError, ValueError: the program cannot be started.
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
            return ProgramOutput(await process.wait(), first, last)
        except asyncio.CancelledError:
            with suppress(ProcessLookupError, PermissionError):  # macOS reports the latter for a group of zombies
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            raise


@asynccontextmanager
async def _pipe() -> AsyncIterator[tuple[asyncio.StreamReader, FileIO]]:
    # Own pipes: with asyncio's, a process counts as running as long as any descendant holds one.
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


TIME_LIMIT: Final = timedelta(seconds=10)
KEPT_FOR: Final = timedelta(minutes=5)


class TokenCommand(Issuer):
    """An issuer that runs the command for each token."""

    def __init__(self, command: Sequence[str], *, within: timedelta = TIME_LIMIT) -> None:
        """Run this program with these arguments, at most this long."""
        self.origin = f"the command {Path(command[0]).name}"
        self._command = tuple(command)
        self._within = within

    async def issue(self) -> Issued:
        """A new token, valid until the API refuses it or :data:`KEPT_FOR` is over.

        Raises:
            CredentialUnusable: the command cannot be run, fails, takes too long, or prints no token.
        """
        try:
            ended = await run(self._command, within=self._within)
        except TimeoutError:
            seconds = self._within.total_seconds()
            raise CredentialUnusable(f"{self.origin} has not ended within {seconds:g} s and was killed") from None
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and is_secret_path(Path(self._command[0]), error):
                raise CredentialUnusable(
                    "the command cannot be run: there is none; what stands in its place looks like a secret and is not "
                    "shown"
                ) from None
            reason = error.strerror if isinstance(error, OSError) else "its arguments cannot be passed on"
            raise CredentialUnusable(f"{self.origin} cannot be run: {reason}") from None
        return Issued(self._token(ended), renew_after=KEPT_FOR, valid_for=KEPT_FOR)

    def _token(self, ended: ProgramOutput) -> str:
        if ended.code:
            how = f"failed with exit code {ended.code}" if ended.code > 0 else f"was ended by signal {-ended.code}"
            raise CredentialUnusable(f"{self.origin} {how}{_complaint(ended)}")
        first = ended.out.partition(b"\n")[0].decode("utf-8", "replace")
        if not first.strip():
            raise CredentialUnusable(f"{self.origin} has printed no token{_complaint(ended)}")
        return checked(first, f"the first line that {self.origin} has printed")


def _complaint(ended: ProgramOutput) -> str:
    """The advice to run the command by hand, without its output, which may contain an older token."""
    if not ended.err.strip():
        return ""
    return "; its standard error may hold a secret and is not shown: run it by hand"


def make_credential(_: str, setting: Sequence[str], parts: CredentialParts) -> Credential:
    """The credential of ``command``."""
    return IssuedToken(TokenCommand(setting), clock=parts.clock)
