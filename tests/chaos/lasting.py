"""A store that can be killed and restarted with the data it has written."""

from __future__ import annotations

import asyncio
import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tests.servers import running

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.servers import Fsync, Server


class LastingStore:
    """One server on a unix socket; ``url`` stays the same across restarts."""

    def __init__(
        self,
        directory: Path,
        *,
        appendfsync: Fsync,
        options: Mapping[str, str],
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self.deaths = 0
        self._appendfsync: Fsync = appendfsync
        self._options = options
        self._environ = environ
        self._stack = ExitStack()
        self._server: Server | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.directory / 's'}"

    @property
    def pid(self) -> int:
        assert self._server is not None
        return self._server.pid

    async def start(self, **options: str) -> None:
        """Start it, and wait until it answers; ``options`` apply to this start only, with ``_`` for ``-``."""
        told = dict(self._options) | {name.replace("_", "-"): value for name, value in options.items()}
        server = running("valkey", self.directory, appendfsync=self._appendfsync, options=told, environ=self._environ)
        self._server = await asyncio.to_thread(self._stack.enter_context, server)

    def kill(self) -> None:
        """Kill it by SIGKILL, and wait until it has ended."""
        self._server = None
        self.deaths += 1
        self._stack.close()

    @property
    def log(self) -> Path:
        """The current append-only file."""
        found = (self.directory / "appendonlydir").glob("*.incr.aof")
        return max(found, key=lambda path: path.stat().st_mtime)

    def send(self, number: signal.Signals) -> None:
        assert self._server is not None
        self._server.process.send_signal(number)

    def close(self) -> None:
        self._stack.close()
