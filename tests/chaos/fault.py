"""Defines a fault: name, row of the table, function, guarantee, and required scene."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tests.chaos.stage import Stage
    from tests.harness.wire import Wire

Between = Literal["store", "source", "sinks", "commands"]
"""The place of a wire or proxy: before store, source or sinks; ``commands``: a proxy that reads Redis commands."""

Store = Literal["lasting", "embedded", "cluster", "sentinel"]


@dataclass(frozen=True, slots=True)
class Setting:
    """The scene that a fault needs.

    Attributes:
        store: ``lasting``: one server that restarts with its data; ``embedded``: the program's own;
            ``cluster``: six servers; ``sentinel``: three Sentinels over two servers.
        appendfsync: of that server.
        options: of that server.
        between: the wires and proxies between the program and its peers.
        misbehaviour: faults of the source, as for ``poller sandbox --faults``; off until switched on.
        environ: of the program.
        store_environ: of a ``lasting`` store.
        records: of the source at the start, in all.
        profile: of the source, as for ``poller sandbox --profile``.
        feeds: more lines for the tables of some feeds in the configuration.
        config: options of the scene's configuration that differ from the usual ones.
        former: the commit of an earlier version, which the first processes run; empty: they run this one.
    """

    store: Store = "lasting"
    appendfsync: Literal["always", "everysec"] = "always"
    options: Mapping[str, str] = field(default_factory=dict)
    between: frozenset[Between] = frozenset()
    misbehaviour: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)
    store_environ: Mapping[str, str] = field(default_factory=dict)
    records: int = 100
    profile: str = ""
    feeds: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)
    former: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to break something.

    Attributes:
        name: as ``--only`` takes it.
        row: its name in the table.
        holds: what must hold, besides nothing lost, doubled or misclassified.
        strike: causes the fault, and returns when it is over or being repaired.
        setting: the scene that it needs.
        most: how many strikes a chapter has at most.
        replaces: whether a replaced process may continue; it may finish the requests it had begun.
        loses_writes: whether the store loses acknowledged writes; repeated events then have the same ids.
        patience: seconds for the recovery after the last strike.
        missing: why the fault is impossible on this machine; None if it is possible.
    """

    name: str
    row: str
    holds: str
    strike: Callable[[Stage, Random], Awaitable[None]]
    setting: Setting = field(default_factory=Setting)
    most: int = 20
    replaces: bool = False
    loses_writes: bool = False
    patience: float = 60.0
    missing: Callable[[], str | None] = lambda: None


def breakages(wire: Wire, rng: Random, *, most_bytes: int, most_delay: float) -> list[Callable[[], None]]:
    """The possible faults of a network, of which one is called: silent, refused, reset, cut, delayed (seconds)."""
    return [
        wire.silence,
        wire.refuse,
        wire.reset,
        lambda: wire.cut(rng.randrange(most_bytes)),
        lambda: wire.delay(rng.random() * most_delay),
    ]
