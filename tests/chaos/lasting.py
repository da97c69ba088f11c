"""A store that is killed and comes back where it was, with what it had written down."""

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
    """One server on a unix socket; ``url`` stays the same whatever happens to it."""

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
        """Start it, and wait until it answers; ``options`` are for this time alone, with ``_`` for ``-``."""
        told = dict(self._options) | {name.replace("_", "-"): value for name, value in options.items()}
        server = running("valkey", self.directory, appendfsync=self._appendfsync, options=told, environ=self._environ)
        self._server = await asyncio.to_thread(self._stack.enter_context, server)

    def kill(self) -> None:
        """SIGKILL, and gone when this returns."""
        self._server = None
        self.deaths += 1
        self._stack.close()

    @property
    def log(self) -> Path:
        """The file to which it appends what it is told to write."""
        found = (self.directory / "appendonlydir").glob("*.incr.aof")
        return max(found, key=lambda path: path.stat().st_mtime)

    def send(self, number: signal.Signals) -> None:
        assert self._server is not None
        self._server.process.send_signal(number)

    def close(self) -> None:
        self._stack.close()
