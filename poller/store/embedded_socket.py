"""What the embedded server's socket tells about it, without a client library.

Two questions: does it answer, and has it gone. The second needs no polling: a connection that is kept open ends in the
instant in which the server does. Refuses to know: what to do about it.
"""

from __future__ import annotations

import asyncio
import contextlib
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from poller.errors import ConfigurationError
from poller.store.data_directory import foreign_peer

if TYPE_CHECKING:
    from pathlib import Path

_ANSWER_LIMIT_SECONDS: Final = 1.0


class SocketState(Enum):
    """READY: serves commands. LOADING: reads its append-only file. NONE: nobody there, or no answer within a second."""

    READY = auto()
    LOADING = auto()
    NONE = auto()


async def asked(path: Path) -> SocketState:
    """PING the server whose socket is at ``path``.

    Raises:
        ConfigurationError: a process of another user answers.
    """
    try:
        async with asyncio.timeout(_ANSWER_LIMIT_SECONDS):
            line = await _answer(path)
    except OSError:  # a timeout is one too
        return SocketState.NONE
    if line.startswith(b"-LOADING"):
        return SocketState.LOADING
    return (
        SocketState.READY if line else SocketState.NONE
    )  # any other error (MISCONF, too many clients) comes from a live server


async def until_gone(path: Path) -> None:
    """Returns when the server whose socket is at ``path`` has gone; at once if there is none."""
    with contextlib.suppress(OSError):
        reader, writer = await asyncio.open_unix_connection(path)
        try:
            await reader.read()  # nothing is ever sent here unasked
        finally:
            writer.close()


async def _answer(path: Path) -> bytes:
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        if (user := foreign_peer(writer.get_extra_info("socket"))) is not None:
            raise ConfigurationError(
                f"the server on {path} is {user}'s and would be given all records: "
                "stop it, or name another embedded.data_dir"
            )
        writer.write(b"PING\r\n")
        return await reader.readline()
    finally:
        writer.close()
