"""Forks processes of the program, so that they need not import it again.

Starting Python and importing the program costs more CPU than most of what a process does in a test. ``python -m
tests.harness.forks`` imports all of it once, then forks for each order. A forked process has its own pid, session,
environment, directory and output, and can be killed by a signal like any other. It runs the program, or the ``main``
of a module of the tests that uses the program.

A test of the start itself, or of what the dynamic linker or OpenTelemetry reads at the start, needs a process that
starts Python.

**Invariants**

- One process forks for all tests of a worker. It is started with the first order, and ends with the worker, however
  that ends; the processes it forked end with it.
- A signal never reaches a process other than the one meant: it is sent by the process's descriptor.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TextIO, cast

import poller
from poller.telemetry import block_opentelemetry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_ROOT: Final = Path(__file__).parents[2]
_LARGEST: Final = 100_000  # bytes of an order: arguments and environment
_FROM_THE_START: Final = ("LD_", "OTEL_")
_LINE: Final = 2**20
PROGRAM: Final = "poller.cli"
_OURS: Final = ("tests.harness.sinks", "tests.store.owner")
"""Modules of the tests whose ``main`` runs in many processes."""


class Forked:
    """A forked process, with the part of :class:`asyncio.subprocess.Process` that the tests use.

    Attributes:
        pid: its process id.
        stdout: its standard output, if piped.
        stderr: likewise.
    """

    def __init__(self, pid: int, descriptor: int, answers: socket.socket) -> None:
        """Take its id, its descriptor, and the socket on which its exit code arrives."""
        self.pid = pid
        self.stdout: asyncio.StreamReader | None = None
        self.stderr: asyncio.StreamReader | None = None
        self._descriptor = descriptor
        self._answers = answers
        self._loop = asyncio.get_running_loop()
        self._code: asyncio.Future[int] = self._loop.create_future()
        self._loop.add_reader(answers, self._ended)

    @property
    def returncode(self) -> int | None:
        """The exit code, or minus the number of the signal that killed it; None while it runs."""
        return self._code.result() if self._code.done() else None

    def send_signal(self, number: int) -> None:
        """Send it a signal if it runs."""
        with suppress(ProcessLookupError):
            if not self._code.done():
                signal.pidfd_send_signal(self._descriptor, number)

    def kill(self) -> None:
        """Kill it by SIGKILL."""
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        """Wait for its exit code."""
        return await asyncio.shield(self._code)

    async def communicate(self) -> tuple[bytes, bytes]:
        """Its remaining output, up to its end."""
        said = [await stream.read() if stream else b"" for stream in (self.stdout, self.stderr)]
        await self.wait()
        return said[0], said[1]

    def _ended(self) -> None:
        self._loop.remove_reader(self._answers)
        with self._answers:
            answer = self._answers.recv(64)
        os.close(self._descriptor)
        self._code.set_result(int(answer) if answer else -signal.SIGKILL)  # no answer: the forking process is gone


class Forks:
    """The forking process, as the tests use it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._orders: socket.socket | None = None

    async def start(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path,
        environ: Mapping[str, str],
        piped: Sequence[int] = (),
        module: str = PROGRAM,
        stdin: int | None = None,
    ) -> Forked:
        """Start ``poller ARGUMENTS``.

        Args:
            arguments: the arguments after the program's name.
            cwd: its working directory.
            environ: its whole environment.
            piped: which of the descriptors 1 and 2 the caller reads; the others are discarded.
            module: the module whose ``main`` runs.
            stdin: a descriptor for its standard input; empty by default.
        """
        ours, pipes = {}, []
        for number in (1, 2):
            if number in piped:
                ours[number], theirs = os.pipe()
            else:
                theirs = os.open(os.devnull, os.O_WRONLY)
            pipes.append(theirs)
        try:
            process = self.start_with(pipes, arguments, cwd=cwd, environ=environ, module=module, stdin=stdin)
        except BaseException:
            for pipe in ours.values():
                os.close(pipe)
            raise
        finally:
            for pipe in pipes:
                os.close(pipe)
        streams = {number: await _reader(pipe) for number, pipe in ours.items()}
        process.stdout, process.stderr = streams.get(1), streams.get(2)
        return process

    def start_with(
        self,
        outputs: Sequence[int],
        arguments: Sequence[str],
        *,
        cwd: Path,
        environ: Mapping[str, str],
        module: str = PROGRAM,
        stdin: int | None = None,
    ) -> Forked:
        """Like :meth:`start`, with descriptors for its standard output and standard error."""
        return Forked(*self._ordered(module, arguments, cwd, environ, (*outputs, *(() if stdin is None else (stdin,)))))

    @contextmanager
    def running(self, module: str, arguments: Sequence[str], *, cwd: Path) -> Iterator[TextIO]:
        """The standard output of a module's ``main``, without an event loop; the process is killed after the block."""
        ours, theirs = os.pipe()
        with open(ours, encoding="utf-8") as said:  # noqa: PTH123 -- a descriptor has no path
            try:
                _, process, answers = self._ordered(module, arguments, cwd, os.environ, (theirs, 2))
            finally:
                os.close(theirs)
            with answers:
                try:
                    yield said
                finally:
                    with suppress(ProcessLookupError):
                        signal.pidfd_send_signal(process, signal.SIGKILL)
                    os.close(process)
                    answers.recv(64)  # once it has ended

    def ran(
        self,
        outputs: Sequence[int],
        arguments: Sequence[str],
        *,
        cwd: Path,
        environ: Mapping[str, str],
        stdin: int | None = None,
    ) -> Callable[[], int]:
        """Start ``poller ARGUMENTS`` without an event loop; the returned function waits for its exit code."""
        files = (*outputs, *(() if stdin is None else (stdin,)))
        _, process, answers = self._ordered(PROGRAM, arguments, cwd, environ, files)
        os.close(process)

        def code() -> int:
            with answers:
                return int(answers.recv(64) or -signal.SIGKILL)

        return code

    def _ordered(
        self, module: str, arguments: Sequence[str], cwd: Path, environ: Mapping[str, str], files: Sequence[int]
    ) -> tuple[int, int, socket.socket]:
        """The pid of a new process, its descriptor, and the socket on which its exit code arrives."""
        order = {"module": module, "arguments": list(arguments), "cwd": str(cwd), "environ": dict(environ)}
        answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                socket.send_fds(self._running(), [json.dumps(order).encode()], [theirs.fileno(), *files])
            pid, descriptors, *_ = socket.recv_fds(answers, 64, 1)
            return int(pid), descriptors[0], answers
        except BaseException:
            answers.close()
            raise

    def close(self) -> None:
        """End the forking process, and with it all forked ones."""
        if self._process is not None and self._orders is not None:
            self._orders.close()
            self._process.wait()
            self._process = self._orders = None

    def _running(self) -> socket.socket:
        if self._orders is None:
            self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                command = (sys.executable, "-m", "tests.harness.forks")
                environ = {**os.environ, "PYTHONUTF8": "1"}
                self._process = subprocess.Popen(
                    command, cwd=_ROOT, env=environ, stdin=theirs.fileno(), start_new_session=True
                )
        return self._orders


_FORKS: Final[list[Forks]] = []


@contextmanager
def forking() -> Iterator[None]:
    """Fork processes of the program during the block; benches and long runs start Python for each."""
    forks = Forks()
    _FORKS.append(forks)
    try:
        yield
    finally:
        _FORKS.remove(forks)
        forks.close()


def forks_for(environ: Mapping[str, str]) -> Forks | None:
    """The forking process, if processes with this environment can be forked."""
    if not _FORKS or any(name.startswith(_FROM_THE_START) for name in environ):
        return None
    return _FORKS[-1]


async def _reader(pipe: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=_LINE)
    file = os.fdopen(pipe, "rb", 0)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    return reader


class _Children:
    """The forked processes that have not ended yet."""

    def __init__(self, orders: socket.socket) -> None:
        self._orders = orders
        self._selector = selectors.DefaultSelector()
        self._answers: dict[int, socket.socket] = {}

    def serve(self) -> None:
        """Fork for each order and report each exit code, until the tests have ended."""
        self._selector.register(self._orders, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is not self._orders:
                    self._ended(key.fd, key.data)
                elif not self._fork():
                    return

    def kill(self) -> None:
        """Kill all of them."""
        for descriptor in self._answers:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)

    def _fork(self) -> bool:
        text, descriptors, *_ = socket.recv_fds(self._orders, _LARGEST, 4)
        if not text:
            return False
        pid = os.fork()
        if not pid:
            _run(json.loads(text), *descriptors[1:])
        answers, *outputs = descriptors
        for output in outputs:
            os.close(output)
        descriptor = os.pidfd_open(pid)
        self._answers[descriptor] = socket.socket(fileno=answers)
        with suppress(BrokenPipeError):
            socket.send_fds(self._answers[descriptor], [b"%d" % pid], [descriptor])
        self._selector.register(descriptor, selectors.EVENT_READ, pid)
        return True

    def _ended(self, descriptor: int, pid: int) -> None:
        _, status = os.waitpid(pid, 0)
        self._selector.unregister(descriptor)
        os.close(descriptor)
        with self._answers.pop(descriptor) as answers, suppress(BrokenPipeError):
            answers.send(b"%d" % os.waitstatus_to_exitcode(status))


def _become(order: dict[str, Any], out: int, err: int, stdin: int | None) -> None:
    """Set this process up like one that was started for this order."""
    os.setsid()
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environ"])
    tempfile.tempdir = None
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 -- for its number alone
        os.dup2(nothing.fileno() if stdin is None else stdin, 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.closerange(3, max(map(int, os.listdir("/dev/fd"))) + 1)  # noqa: PTH208 -- of names alone
    # The existing streams remember whether their former files could seek.
    sys.stdin, sys.stdout, sys.stderr = _opened(0, "r"), _opened(1, "w"), _opened(2, "w", buffering=1)
    sys.argv = ["poller" if order["module"] == PROGRAM else order["module"], *order["arguments"]]


def _opened(number: int, mode: str, *, buffering: int = -1) -> TextIO:
    return cast("TextIO", open(number, mode, buffering, encoding="utf-8", closefd=False))


def _run(order: dict[str, Any], out: int, err: int, stdin: int | None = None) -> NoReturn:
    """Run the program as ordered and end the process, without Python's cleanup of modules and objects."""
    code = 1
    try:
        _become(order, out, err, stdin)
        import_module(order["module"]).main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:  # noqa: BLE001 -- the process ends here and prints why
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _import_all() -> None:
    block_opentelemetry()
    for module in pkgutil.walk_packages(poller.__path__, "poller."):
        if module.name != "poller.__main__":
            with suppress(ImportError):  # optional and not installed
                import_module(module.name)
    for name in _OURS:
        import_module(name)


if __name__ == "__main__":
    _import_all()
    gc.freeze()  # so that forked processes do not touch existing objects
    children = _Children(socket.socket(fileno=0))
    try:
        children.serve()
    finally:
        children.kill()
