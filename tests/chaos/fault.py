"""What a fault is: a name, a row of the list, how it is made, what must hold, and the scene that it needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tests.chaos.stage import Stage
    from tests.harness.wire import Wire

Between = Literal["store", "source", "sinks", "commands"]
"""Where a wire or a proxy of ours stands: before store, source or sinks; ``commands``: one that reads Redis' words."""

Store = Literal["lasting", "embedded", "cluster", "sentinel"]


@dataclass(frozen=True, slots=True)
class Setting:
    """The scene that a fault needs.

    Attributes:
        store: ``lasting``: one server that comes back where it was; ``embedded``: the program's own;
            ``cluster``: six of them; ``sentinel``: three that watch two.
        appendfsync: of that server.
        options: of that server.
        between: what stands between the program and others.
        misbehaviour: of the source, now and then, as ``poller sandbox --faults`` takes it; off until it is switched on.
        environ: of the program.
        store_environ: of a ``lasting`` store.
    """

    store: Store = "lasting"
    appendfsync: Literal["always", "everysec"] = "always"
    options: Mapping[str, str] = field(default_factory=dict)
    between: frozenset[Between] = frozenset()
    misbehaviour: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)
    store_environ: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to break something.

    Attributes:
        name: as ``--only`` takes it.
        row: as the table calls it.
        holds: what must hold, beside nothing lost, doubled or misclassified.
        strike: makes it, and returns when it is over or its mending has begun.
        setting: the scene that it needs.
        most: how many strikes a chapter has at most.
        replaces: whether a process may go on that has been replaced meanwhile; it may end the requests it had begun.
        loses_writes: whether the store forgets what it acknowledged; then what is sent again carries the same ids.
        patience: in how many seconds all has to be well after the last strike.
        missing: why it cannot be made on this machine; None: it can.
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
    """What may happen to a network, one of it to be called: silent, refused, reset, cut, delayed (seconds)."""
    return [
        wire.silence,
        wire.refuse,
        wire.reset,
        lambda: wire.cut(rng.randrange(most_bytes)),
        lambda: wire.delay(rng.random() * most_delay),
    ]
