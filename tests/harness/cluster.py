"""A cluster of three primaries and their replicas: six real processes on loopback.

It does not fail over by itself, because a busy machine would cause that at any time; a test starts each failover.

Everything here blocks: a running test calls it by ``asyncio.to_thread``.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Final, Literal

from redis.crc import key_slot
from redis.exceptions import ResponseError

from tests.harness.nodes import HOST, Node, server_node, started_all, until
from tests.servers import Kind, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SHARDS: Final = 3
_SLOTS: Final = 16384
_KEYS_AT_ONCE: Final = 100
_SECONDS: Final = 40.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """The nodes; which of them are primaries changes."""

    nodes: tuple[Node, ...]

    @property
    def url(self) -> str:
        """``redis+cluster://…`` with two of the nodes, from which the others are found."""
        return f"redis+cluster://{','.join(f'{HOST}:{one.port}' for one in self.nodes[:2])}"

    @property
    def primaries(self) -> tuple[Node, ...]:
        """The three nodes that hold slots, as the first running node sees it."""
        ports = {port for _, port, _ in self._owners()}
        return tuple(node for node in self.nodes if node.port in ports)

    def primary_of(self, key: str | int) -> Node:
        """The node that holds a key or a slot."""
        slot = slot_of(key)
        port = next(port for slots, port, _ in self._owners() if slot in slots)
        return self._at(port)

    def replica_of(self, key: str | int) -> Node:
        """The replica of the node that holds a key or a slot."""
        slot = slot_of(key)
        return self._at(next(replicas[0] for slots, _, replicas in self._owners() if slot in slots))

    def fail_over(self, key: str | int, how: Literal["", "FORCE", "TAKEOVER"] = "") -> Node:
        """Promote the replica of the node that holds a key, and wait until every node knows; the new primary.

        Args:
            key: or a slot.
            how: in agreement with the old primary, nothing is lost (``""``); without it (``FORCE``); without any
                vote (``TAKEOVER``), which works at once after :meth:`Node.kill` of the old one.
        """
        new = self.replica_of(key)
        until(lambda: new.ask("CLUSTER", "FAILOVER", *[how] * bool(how)) == b"OK", "a failover to begin")
        until(lambda: new.role == "master" and self.primary_of(key) is new, "a failover", seconds=_SECONDS)
        until(lambda: all(self._agrees(one, key, new) for one in self._running()), "all nodes", seconds=_SECONDS)
        return new

    def begin_move(self, key: str | int, to: Node) -> None:
        """Start the move of a slot: from now on its keys may be at either node (ASK, TRYAGAIN)."""
        slot, source = slot_of(key), self.primary_of(key)
        to.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", name_of(source))
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", name_of(to))

    def move_keys(self, key: str | int, to: Node, *, most: int | None = None) -> int:
        """Move keys of a slot whose move has started, all or ``most``; the number moved."""
        slot, source, moved = slot_of(key), self.primary_of(key), 0
        while most is None or moved < most:
            some = min(_KEYS_AT_ONCE, most - moved if most is not None else _KEYS_AT_ONCE)
            names = source.ask("CLUSTER", "GETKEYSINSLOT", slot, some)
            if not names:
                break
            source.ask("MIGRATE", HOST, to.port, "", 0, 5000, "KEYS", *names)
            moved += len(names)
        return moved

    def end_move(self, key: str | int, to: Node) -> None:
        """Give the slot to its new primary, and wait until every node knows."""
        slot, source = slot_of(key), self.primary_of(key)
        to.ask("CLUSTER", "SETSLOT", slot, "NODE", name_of(to))
        source.ask("CLUSTER", "SETSLOT", slot, "NODE", name_of(to))
        until(lambda: all(self._agrees(one, slot, to) for one in self._running()), "all nodes", seconds=_SECONDS)

    def move_slot(self, key: str | int, to: Node | None = None) -> Node:
        """Move the slot of a key with all its keys while clients write them; its new primary.

        Args:
            key: or a slot.
            to: a primary; by default any other one.
        """
        source = self.primary_of(key)
        to = to or next(one for one in self.primaries if one is not source)
        self.begin_move(key, to)
        for _ in range(1000):  # keys written meanwhile have to move, too
            self.move_keys(key, to)
            try:
                self.end_move(key, to)
            except ResponseError as error:
                if "still hold keys" not in str(error) and "still has keys" not in str(error):
                    raise
            else:
                return to
        raise AssertionError("the slot fills faster than it is moved")

    def settled(self) -> None:
        """Wait until every slot is served and every replica follows its primary."""
        until(self._in_order, "a whole cluster", seconds=_SECONDS)

    def empty(self) -> None:
        """Start the nodes that do not run, and delete all data; slots stay where they are."""
        for one in self.nodes:
            if not one.runs:
                one.start()
        self.settled()
        for one in self.primaries:
            until(one.empty, "an empty primary and its replica", seconds=_SECONDS)

    def _in_order(self) -> bool:
        for one in self.nodes:
            state = dict(line.split(":") for line in one.ask("CLUSTER", "INFO").decode().split())
            if state["cluster_state"] != "ok" or int(state["cluster_slots_ok"]) != _SLOTS:
                return False
        primaries = self.primaries
        replicas = [one for one in self.nodes if one not in primaries]
        return len(replicas) == _SHARDS and all(one.in_step() for one in replicas) and self._of_one_mind()

    def _of_one_mind(self) -> bool:
        views = [self._owners(one) for one in self.nodes]
        return all(view == views[0] for view in views) and all(replicas for _, _, replicas in views[0])

    def _agrees(self, observer: Node, key: str | int, primary: Node) -> bool:
        slot = slot_of(key)
        return any(slot in slots and port == primary.port for slots, port, _ in self._owners(observer))

    def _owners(self, observer: Node | None = None) -> list[tuple[range, int, list[int]]]:
        """The slots with their primary's port and the ports of its replicas, as one node sees it."""
        answer = (observer or self._running()[0]).ask("CLUSTER", "SLOTS")
        return [
            (range(first, last + 1), primary[1], sorted(one[1] for one in replicas))
            for first, last, primary, *replicas in sorted(answer, key=itemgetter(0))
        ]

    def _running(self) -> list[Node]:
        return [one for one in self.nodes if one.runs]

    def _at(self, port: int) -> Node:
        return next(one for one in self.nodes if one.port == port)


def slot_of(key: str | int) -> int:
    """The slot of a key; a slot itself is returned unchanged."""
    return key if isinstance(key, int) else int(key_slot(key.encode()))


def name_of(node: Node) -> str:
    """The id by which the other nodes know it."""
    return str(node.ask("CLUSTER", "MYID").decode())


@contextmanager
def cluster(directory: Path, *, kind: Kind = "valkey", node_timeout_ms: int = 5000) -> Iterator[Cluster]:
    """A running, complete cluster for the duration of the ``with``.

    Args:
        directory: for all files; must be unused.
        kind: the kind of server; from version 7 on.
        node_timeout_ms: how long a node may be silent before the others refuse to serve its slots.
    """
    with ExitStack() as stack:
        nodes = tuple(_node(kind, directory / f"n{place}", node_timeout_ms) for place in range(2 * _SHARDS))
        started_all(nodes, stack)
        _introduce(nodes)
        running = Cluster(nodes)
        running.settled()
        yield running


def _node(kind: Kind, directory: Path, node_timeout_ms: int) -> Node:
    options = ["--cluster-enabled", "yes", "--cluster-port", str(free_port())]
    options += ["--cluster-node-timeout", str(node_timeout_ms), "--cluster-replica-no-failover", "yes"]
    return server_node(kind, directory, *options)


def _introduce(nodes: tuple[Node, ...]) -> None:
    """Give each primary a third of the slots, and each replica its primary."""
    primaries, replicas = nodes[:_SHARDS], nodes[_SHARDS:]
    bounds = [_SLOTS * part // _SHARDS for part in range(_SHARDS + 1)]
    for place, one in enumerate(nodes):
        one.ask("CLUSTER", "SET-CONFIG-EPOCH", place + 1)
        bus = one.ask("CONFIG", "GET", "cluster-port")[1]
        nodes[0].ask("CLUSTER", "MEET", HOST, one.port, bus)
    for one, first, end in zip(primaries, bounds, bounds[1:], strict=False):
        one.ask("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
    for primary, replica in zip(primaries, replicas, strict=True):
        until(partial(_follows, replica, name_of(primary)), "the replica to know its primary")


def _follows(replica: Node, primary: str) -> bool:
    return bool(replica.ask("CLUSTER", "REPLICATE", primary) == b"OK")
