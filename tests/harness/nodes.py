"""One server of several that know each other: on a fixed port, can be killed and restarted in place.

Everything here blocks: fixtures call it, and a running test calls it by ``asyncio.to_thread``.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as Unreachable
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as Unanswered
from redis.retry import Retry

from tests.harness.waiting import blocking_until, strain
from tests.servers import Kind, binary, free_port, launched

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

HOST: Final = "127.0.0.1"


until: Final = partial(blocking_until, every=0.02, despite=(RedisError, StopIteration))
"""Wait for a condition; it does not hold while a server is unreachable or names no primary."""


@dataclass(slots=True)
class Node:
    """A server with a fixed address.

    Attributes:
        command: that starts it, each time.
        directory: of its files.
        port: on the loopback address.
        process: the running or last process; None before :meth:`start`.
    """

    command: tuple[str, ...]
    directory: Path
    port: int
    process: subprocess.Popen[str] | None = None
    _client: Redis | None = field(default=None, repr=False)

    def start(self) -> None:
        """Start it, or restart it with its files."""
        assert not self.runs
        self.process = launched(self.command)

    @property
    def runs(self) -> bool:
        """Whether there is a process, suspended or not."""
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """End it by SIGKILL, if it runs."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.forget()

    def stop(self) -> None:
        """Suspend it (SIGSTOP): it keeps its connections and answers nothing."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Resume it (SIGCONT)."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def forget(self) -> None:
        """Close the client connection."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def ask(self, *command: str | bytes | int) -> Any:
        """The server's answer as it comes over the wire, in bytes.

        Raises:
            RedisError: the server refuses or is unreachable.
        """
        if self._client is None:
            retry = Retry(NoBackoff(), 1, supported_errors=(Unreachable, Unanswered))
            self._client = Redis(host=HOST, port=self.port, protocol=2, socket_timeout=5 * strain(), retry=retry)
            self._client.response_callbacks.clear()
        return self._client.execute_command(*command)  # type: ignore[no-untyped-call]  # redis-py leaves it untyped

    def empty(self) -> bool:
        """Delete all data of this primary; whether its replica has done so, too."""
        self.ask("FLUSHALL")
        self.ask("SCRIPT", "FLUSH")
        return int(self.ask("WAIT", 1, 1000)) > 0  # sooner than the client gives up

    @property
    def role(self) -> str:
        """``master`` or ``slave``, as the server sees itself."""
        return str(self.ask("ROLE")[0].decode())

    def in_step(self) -> bool:
        """Whether this replica follows its primary without a gap."""
        answer = self.ask("ROLE")
        return bool(answer[0] == b"slave" and answer[3] == b"connected")


def server_node(kind: Kind, directory: Path, *options: str) -> Node:
    """A data server on a free port in a new directory, not started."""
    directory.mkdir(parents=True)
    port = free_port()
    settings = ["--port", str(port), "--bind", HOST, "--dir", str(directory), "--save", ""]
    settings += [
        "--appendonly",
        "yes",
        "--maxmemory-policy",
        "noeviction",
        "--repl-diskless-sync-delay",
        "0",
        "--enable-debug-command",
        "yes",
    ]
    return Node((str(binary(kind)), *settings, *options), directory, port)


def started_all(nodes: Iterable[Node], stack: ExitStack) -> None:
    """Start the nodes, and kill them at the end of the stack."""
    for node in nodes:
        stack.callback(node.kill)
        node.start()
