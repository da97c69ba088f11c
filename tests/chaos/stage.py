"""The scene of a chapter: a source that changes, a store, two processes of the program, two sinks; and the verdict.

Everything is a process of its own but the load, and whatever stands between them where a fault needs that.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.chaos.asking import PATIENCE, answered
from tests.chaos.confided import told_secrets
from tests.chaos.lasting import LastingStore
from tests.chaos.outcome import Outcome
from tests.harness.after_loss import judge_after_loss
from tests.harness.cluster import Cluster
from tests.harness.sentinels import Sentinels
from tests.harness.subscribed import SECRET, Wish
from tests.harness.waiting import Deadline, strain, unless, until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tests.chaos.fault import Fault
    from tests.chaos.load import Load
    from tests.chaos.plan import Strike
    from tests.chaos.replicas import Replicas
    from tests.harness.delivered import Deliveries
    from tests.harness.subscribed import Subscribed
    from tests.harness.wire import Wire
    from tests.proxy import Proxy

Served = LastingStore | Cluster | Sentinels
_POLLER = ("poller", "run")
MOODS = "ok=30 slow=15 500=2 reset=0.5 429/2=0.02"
TTL = 1.0  # seconds
_HEARD = 1.0  # seconds; it takes a quarter of one until the other process knows of a pause
_HEARD_LATE = 1.5  # where all are busy; pauses last two, so that there is something left to keep
_CROWDED = 4.0  # runnable threads for each CPU; a chapter alone makes about two
EMBEDDED = "e"  # the directory of the program's own store; short, for a socket is in it
WISHES = (Wish("one"), Wish("two"))
_REPLACED = "was not renewed in time"  # so says a process that was too slow for its leases, on a busy machine


def heard() -> float:
    """Seconds until all processes know that a sink wants to be left alone, on this machine now."""
    return min(_HEARD * max(strain() / _CROWDED, 1.0), _HEARD_LATE)


@dataclass(frozen=True, slots=True)
class Cast:
    """Who plays.

    Attributes:
        commands: what each process runs.
        wishes: the subscriptions.
        removals: whether records are removed, too.
        commits: what the commands have in them that commit.
    """

    commands: Sequence[Sequence[str]] = (_POLLER, _POLLER)
    wishes: Sequence[Wish] = WISHES
    removals: bool = True
    commits: bytes = b"}:rejected"  # of the scripts, the commit alone names it


@dataclass(slots=True)
class Stage:
    """A running scene.

    Attributes:
        directory: of the chapter.
        cast: who plays.
        scene: source, store and sinks, for asking.
        replicas: the processes of the program.
        load: the changes.
        served: the store, unless it is the program's own.
        wires: what stands before store, source and sinks, where the fault asks for it.
        proxy: what reads Redis' words between program and store, likewise.
        begun: how much the store had written when all had begun, in bytes.
        remarks: what was found wrong on the way.
        begun_anew: the feeds of which the store has lost all: each has a new baseline, which no sink is told.
    """

    directory: Path
    cast: Cast
    scene: Subscribed
    replicas: Replicas
    load: Load
    served: Served | None
    wires: Mapping[str, Wire]
    proxy: Proxy | None
    begun: int = 0
    remarks: list[str] = field(default_factory=list)
    begun_anew: set[str] = field(default_factory=set)
    _never: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def store(self) -> LastingStore:
        """The server; only where it is not the program's own."""
        assert isinstance(self.served, LastingStore)
        return self.served

    @property
    def cluster(self) -> Cluster:
        """Likewise, where it is a cluster."""
        assert isinstance(self.served, Cluster)
        return self.served

    @property
    def sentinels(self) -> Sentinels:
        """Likewise, where Sentinels watch it."""
        assert isinstance(self.served, Sentinels)
        return self.served

    async def work(self, strike: Strike) -> None:
        """Return at the instant at which a strike is due: so much has been published, and a moment more."""
        growth = partial(self.scene.played.growth, strike.events, unless=self._never, seconds=PATIENCE)
        await answered(growth)
        await self.rest(strike.pause)

    async def begin(self) -> None:
        """Return when each feed has been read and each sink has what came of it: what is lost later is a part."""
        await until(self._read, "each feed's first events")
        await answered(partial(self.scene.delivered, Deadline(PATIENCE)))

        if isinstance(self.served, LastingStore):
            self.begun = self.served.log.stat().st_size

    async def _read(self) -> bool:
        return all([await self.scene.entries(feed) for feed in self.scene.feeds])

    async def rest(self, seconds: float) -> None:
        """Let so much time pass: how long a fault lasts is the fault."""
        await unless(self._never, seconds)

    async def killed(self) -> None:
        """Note that a process was killed, and what is on record."""
        await answered(self.scene.killed)

    async def quiet(self, patience: float) -> tuple[int, Deadline]:
        """Stop the changes, let sinks be well; up to which version all is due, and until when."""
        await self.load.stop()
        for wish in self.scene.wishes:
            self.scene.sinks.mood(wish.sink, "ok")
        return await self.scene.played.version(), Deadline(patience)

    async def judged(self, outcome: Outcome, fault: Fault) -> Outcome:
        """Let all come to rest, and say what is found."""
        upto, deadline = await self.quiet(fault.patience)
        stream = await answered(partial(self.scene.published, upto, deadline, begun_anew=self.begun_anew))
        sinks = await answered(partial(self.scene.delivered, deadline, begun_anew=self.begun_anew))
        if fault.loses_writes:
            sinks = {wish.sink: await self._after_loss(wish) for wish in self.scene.wishes}
        self.remarks += self.replicas.strayed() + await told_secrets(self)
        for wish in () if self.begun_anew else self.scene.wishes:
            told = await self.scene.told_by(wish, upto)
            if told is not None and told.lost and not sinks[wish.sink].lost and not stream.lost:
                self.remarks.append(f"{wish.sink} was not told all that the source did: {told}")
        return replace(
            outcome,
            changes=upto,
            stream=stream,
            sinks=sinks,
            woken=max(len(outcome.chapter.strikes) if fault.replaces else 0, self.replicas.lines(_REPLACED)),
            refused=self.replicas.lines("lost lease "),
            remarks=tuple(self.remarks),
        )

    async def _after_loss(self, wish: Wish) -> Deliveries:
        log = list(self.scene.sinks.of(wish.sink))
        streams = {feed: await self.scene.entries(feed) for feed in self.scene.feeds}
        secret = SECRET if wish.signed else None
        return judge_after_loss(log, streams, await self.log(), secret, begun_anew=self.begun_anew)

    async def keep(self, directory: Path) -> None:
        """Write down what there is to see."""
        directory.mkdir(exist_ok=True)  # noqa: ASYNC240 -- a local directory, and nobody else waits
        self.replicas.keep_logs(directory)
        (directory / "source.jsonl").write_text("\n".join(json.dumps(line, default=str) for line in await self.log()))
        for feed in self.scene.feeds:
            entries = await self.scene.entries(feed)
            lines = (f"{entry} {event.decode()}" for entry, event in entries)
            (directory / f"{feed}.stream").write_text("\n".join(lines))

    async def log(self) -> list[dict[str, Any]]:
        """The source's history."""
        return await self.scene.played.log()
