"""Three Sentinels over a primary and its replica: real processes on loopback.

Everything here blocks: a running test calls it by ``asyncio.to_thread``.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.harness.nodes import HOST, Node, server_node, started_all, until
from tests.servers import Kind, binary, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SERVICE: Final = "poller"
_HURRY: Final = {"INFO-PERIOD": "400", "PING-PERIOD": "200", "ASK-PERIOD": "200", "PUBLISH-PERIOD": "200"}
_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Sentinels:
    """The Sentinels and the servers they watch.

    Attributes:
        watchers: the three Sentinels.
        servers: primary and replica, in either order; a failover swaps their roles.
    """

    watchers: tuple[Node, ...]
    servers: tuple[Node, Node]

    @property
    def url(self) -> str:
        """``redis+sentinel://…``, database 0."""
        return f"redis+sentinel://{','.join(f'{HOST}:{one.port}' for one in self.watchers)}/{SERVICE}/0"

    @property
    def primary(self) -> Node:
        """The server that the Sentinels name as primary."""
        return next(one for one in self.servers if one.port == self._named(self.watchers[0]))

    @property
    def replica(self) -> Node:
        """The other one."""
        return next(one for one in self.servers if one is not self.primary)

    def fail_over(self) -> None:
        """Make the Sentinels promote the replica (SENTINEL FAILOVER), and wait until the failover is complete."""
        self.begin_failover()
        self.settled()

    def begin_failover(self) -> None:
        """Make the Sentinels promote the replica, and return once they name it."""
        before = self.primary
        until(lambda: self._begun(before), "the Sentinels to name another primary", seconds=_SECONDS)

    def _begun(self, before: Node) -> bool:
        """Whether the failover has started; a Sentinel that lost sight of the replica gives up and is asked again."""
        seen = _seen_by(self.watchers[0])
        if int(seen[b"port"]) != before.port:
            return True
        if b"failover_in_progress" not in seen[b"flags"]:
            self.watchers[0].ask("SENTINEL", "FAILOVER", SERVICE)
        return False

    def kill_primary(self) -> Node:
        """Kill the primary and wait until the replica has taken over; restarted, the returned node is a replica."""
        before = self.primary
        before.kill()
        self.replaced(before)
        return before

    def replaced(self, before: Node) -> None:
        """Wait until the Sentinels name another primary."""
        until(lambda: self.primary is not before, "the Sentinels to name another primary", seconds=_SECONDS)

    def settled(self) -> None:
        """Wait until all Sentinels name the actual primary and the other server follows it."""
        until(self._in_order, "a primary that all Sentinels name, and its replica", seconds=_SECONDS)

    def empty(self) -> None:
        """Start the servers that do not run, and delete all data."""
        for one in self.servers:
            if not one.runs:
                one.start()
        self.settled()
        until(self.primary.empty, "an empty primary and its replica", seconds=_SECONDS)

    def _in_order(self) -> bool:
        named = {self._named(one) for one in self.watchers}
        ready = all(self._sees_all(one) for one in self.watchers)
        return ready and named == {self.primary.port} and self.primary.role == "master" and self.replica.in_step()

    @staticmethod
    def _named(watcher: Node) -> int:
        return int(watcher.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1])

    @staticmethod
    def _sees_all(watcher: Node) -> bool:
        seen = _seen_by(watcher)
        counts = (int(seen[b"num-slaves"]), int(seen[b"num-other-sentinels"]))
        return bool(seen[b"flags"] == b"master" and counts == (1, 2))


def _seen_by(watcher: Node) -> dict[bytes, bytes]:
    flat = watcher.ask("SENTINEL", "MASTER", SERVICE)
    return dict(zip(flat[::2], flat[1::2], strict=True))


@contextmanager
def sentinels(directory: Path, *, kind: Kind = "valkey", down_after_ms: int = 5000) -> Iterator[Sentinels]:
    """A running, settled set of Sentinels for the duration of the ``with``.

    Args:
        directory: for all files; must be unused.
        kind: the kind of server, Sentinels included.
        down_after_ms: how long a primary may be silent before it is replaced; a busy machine makes it silent at times.
    """
    with ExitStack() as stack:
        first = server_node(kind, directory / "a")
        second = server_node(kind, directory / "b", "--replicaof", f"{HOST} {first.port}")
        started_all((first, second), stack)
        watchers = tuple(_watcher(kind, directory / f"w{place}", first, down_after_ms) for place in range(3))
        started_all(watchers, stack)
        for one in watchers:
            one.ask("SENTINEL", "DEBUG", *(word for pair in _HURRY.items() for word in pair))
        running = Sentinels(watchers, (first, second))
        running.settled()
        yield running


def _watcher(kind: Kind, directory: Path, primary: Node, down_after_ms: int) -> Node:
    directory.mkdir(parents=True)
    port, file = free_port(), directory / "sentinel.conf"
    lines = [f"port {port}", f"bind {HOST}", f"dir {directory}"]
    lines += [f"sentinel monitor {SERVICE} {HOST} {primary.port} 2"]
    lines += [f"sentinel down-after-milliseconds {SERVICE} {down_after_ms}"]
    lines += [f"sentinel failover-timeout {SERVICE} 3000"]
    file.write_text("\n".join(lines) + "\n")
    return Node((str(binary(kind)), str(file), "--sentinel"), directory, port)
