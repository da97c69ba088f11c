"""The embedded store: a Valkey server of our own on a data directory, shared by the processes of one machine.

Law: at most one server on a directory, at any time. Whoever needs it first starts it; the others connect to its socket;
when it goes, one of those that are left starts it again. Nobody has to know whose child it is:

===================  ========  =============================================================
the socket answers   the lock  what :meth:`EmbeddedServer.ensure` does
===================  ========  =============================================================
anything             any       uses it: its own, a sibling's, or an orphan's
LOADING              any       waits: a large append-only file takes minutes
nothing              free      starts a server, which takes the lock along
nothing              held      waits: that server is starting, stopping or stuck
===================  ========  =============================================================

A socket file that a killed server left behind answers nothing, and the next server replaces it. Where in the directory
all this is, and who is trusted with it: :mod:`poller.store.data_directory`. An end of the data that a power cut has
torn is cut before the start (:mod:`poller.store.append_only_file`), or after a server has refused it.

Refuses to know: clients, keys, what the server is used for.
"""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import structlog

from poller.errors import ConfigurationError, PollerError, StoreUnavailable
from poller.stopping import unless
from poller.store.append_only_file import check_manifest, cut, looks_torn, torn_end
from poller.store.connection import EMBEDDED
from poller.store.data_directory import DATA, linked, located, moved, prepared, unusable
from poller.store.directory_lock import attempted
from poller.store.embedded_process import LOG, SOCKET, Fsync, complaints, last_words, start
from poller.store.embedded_socket import SocketState, asked, until_gone

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

LOCK: Final = "lock"
LONGEST_SOCKET_PATH: Final = 103
"""Bytes of a socket's path that every system takes: 104 with the closing zero on macOS, 108 on Linux."""

START_LIMIT: Final = timedelta(seconds=15)
LOADING_LIMIT: Final = timedelta(minutes=15)
STOP_LIMIT: Final = timedelta(seconds=3)
_LOOK_AGAIN_SECONDS: Final = 0.02
_STEADY_SECONDS: Final = 10.0  # who lived for so long went for a new reason
_TRY_AGAIN_SECONDS: Final = 0.5  # doubles up to
_LONGEST_PAUSE_SECONDS: Final = 10.0

_NO_TOOL: Final = re.compile(r"(?:\.|:) ?(?:You can|make a backup)[^|]*valkey-check-aof[^|]*[^| ]")
"""Valkey's advice to use a program that is not here."""

_log = structlog.get_logger()


class EmbeddedServer:
    """A server on ``data_dir``, whose child it may be: :meth:`ensure` it, :meth:`keep` it in a task, :meth:`stop` it.

    To be used from the main thread's event loop: a server ends with the thread that started it.
    """

    def __init__(self, data_dir: Path, *, fsync: Fsync = "always") -> None:
        self._data_dir = data_dir.absolute()
        self._directory = self._data_dir  # once it was looked at, the directory in it that is this user's alone
        self._fsync: Fsync = fsync
        self._child: subprocess.Popen[bytes] | None = None
        self._leaving = asyncio.Event()
        self._turn = asyncio.Lock()

    @property
    def url(self) -> str:
        """``unix://``, the path of the socket, and what has a client look whose it is.

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
            StoreUnavailable: the server left at once (with the last lines of its log), or does not answer in time.
        """
        async with self._turn:
            self._leaving.clear()
            await self._until_ready()

    async def keep(self) -> None:
        """Whenever the server goes, wherever it ran, sees to it that there is one again. Until cancelled or stopped.

        One that goes again and again, for its disk is full, say, is started less and less often; why is told once.
        """
        clock, pause, told = asyncio.get_running_loop().time, 0.0, ""
        while True:
            since = clock()
            await until_gone(self._socket)
            if self._leaving.is_set():
                return
            pause = pause_before(clock() - since, pause)
            why = complaints(self._directory / LOG)
            if why and why != told:
                told = why
                _log.warning("embedded server went", log=why, advice="it is started again; nothing is lost")
            elif not why:
                _log.info("embedded server went", advice="it is started again; nothing is lost")
            await unless(self._leaving, pause)
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
                await _ended(child)

    async def _until_ready(self) -> None:
        self._directory = prepared(self._data_dir)
        _check_length(self._data_dir, self._socket)
        tried = mended = False
        clock, limit = asyncio.get_running_loop().time, START_LIMIT
        begin = clock()
        while not self._leaving.is_set() and clock() - begin < limit.total_seconds():
            answer = await asked(self._socket)
            if answer is SocketState.READY:
                linked(self._data_dir, self._socket)
                return
            if answer is SocketState.LOADING:
                limit = LOADING_LIMIT
            elif not self.running_here:  # a child of before may be dying still: its socket closes before it is gone
                if tried and (mended or not _data_refused(self._directory / LOG)):
                    raise self._failure("left at once")
                mended = tried
                if await self._start_if_free(mending=mended):
                    tried, begin = True, clock()
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        raise self._failure("is being stopped" if self._leaving.is_set() else "does not answer")

    async def _start_if_free(self, *, mending: bool) -> bool:
        """Whether the directory was free, and so has a server now.

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
        """Of the directory, and the one that an earlier version holds or would take in ``data_dir``."""
        earlier = self._data_dir / LOCK
        return [self._directory / LOCK, *([earlier] if self._directory != self._data_dir and earlier.exists() else [])]

    def _failure(self, what: str) -> StoreUnavailable:
        words = _NO_TOOL.sub(": restore its directory from a backup", last_words(self._directory / LOG))
        return StoreUnavailable(f"the embedded server on {self._directory} {what}; the end of its log: {words}")


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
    """Whether the server has left for what it read in its files."""
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


async def _ended(child: subprocess.Popen[bytes]) -> None:
    """SIGTERM, which writes out what is left; SIGKILL after five seconds, or when nobody waits any more."""
    child.terminate()
    try:
        async with asyncio.timeout(STOP_LIMIT.total_seconds()):
            while child.poll() is None:  # noqa: ASYNC110 — a child's exit is no event without a thread or a signal handler
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)
    except TimeoutError:
        _log.warning("embedded server did not stop and is killed", pid=child.pid)
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
