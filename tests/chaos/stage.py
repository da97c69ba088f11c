"""The scene of a chapter: a changing source, a store, two processes of the program, two sinks, and the verdict.

All of these are separate processes; only the load and the wires and proxies that a fault needs run in the test itself.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.chaos.asking import PATIENCE, answered
from tests.chaos.confided import told_secrets
from tests.chaos.lasting import LastingStore
from tests.chaos.outcome import Outcome
from tests.harness.after_loss import judge_after_loss
from tests.harness.cluster import Cluster
from tests.harness.consumed import GROUP
from tests.harness.scene import stream
from tests.harness.sentinels import Sentinels
from tests.harness.subscribed import SECRET, Wish
from tests.harness.waiting import Deadline, strain, unless, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from random import Random

    from tests.chaos.fault import Fault
    from tests.chaos.load import Load
    from tests.chaos.plan import Strike
    from tests.chaos.replicas import Replicas
    from tests.harness.checker import Verdict
    from tests.harness.consumed import ConsumerGroup
    from tests.harness.delivered import Deliveries
    from tests.harness.processes import Daemon
    from tests.harness.received import ReceiverProcess
    from tests.harness.subscribed import Subscribed
    from tests.harness.wire import Wire
    from tests.proxy import Proxy

Served = LastingStore | Cluster | Sentinels
_POLLER = ("poller", "run")
MOODS = "ok=30 slow=15 500=2 reset=0.5 429/2=0.02"
TTL = 1.0  # seconds
_HEARD = 1.0  # seconds; the other process knows of a pause after a quarter of one
_HEARD_LATE = 1.5  # on a busy machine; less than the pauses of two seconds
_CROWDED = 4.0  # runnable threads for each CPU; a chapter alone makes about two
EMBEDDED = "e"  # the directory of the program's own store; short, because a socket is in it
WISHES = (Wish("one"), Wish("two"))
RECEIVED = "received"  # the subscription of a receiver of the client library
_LOOK = 0.1  # seconds between two looks at its ledger
_REPLACED = "was not renewed in time"  # logged by a process too slow to renew its leases


def heard() -> float:
    """Seconds until all processes know of a pause that a sink asks for, at the present load."""
    return min(_HEARD * max(strain() / _CROWDED, 1.0), _HEARD_LATE)


@dataclass(frozen=True, slots=True)
class Cast:
    """The processes and subscriptions of a scene.

    Attributes:
        commands: what each process runs.
        wishes: the subscriptions.
        receiver: whether a receiver of the client library subscribes, too.
        consumers: whether a group of the client library reads the streams.
        removals: whether the load removes records.
        commits: a text that only the commands of a commit contain.
    """

    commands: Sequence[Sequence[str]] = (_POLLER, _POLLER)
    wishes: Sequence[Wish] = WISHES
    receiver: bool = True
    consumers: bool = True
    removals: bool = True
    commits: bytes = b"}:rejected"  # the only script that names it is the commit


class Unpublished(Exception):
    """A change of the source that is not in the streams although there was time, or an event that is wrong."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(str(verdict))
        self.verdict = verdict


@dataclass(slots=True)
class Stage:
    """A running scene.

    Attributes:
        directory: of the chapter.
        cast: its processes and subscriptions.
        scene: access to source, store and sinks.
        replicas: the processes of the program.
        load: the changes.
        served: the store, unless it is embedded.
        wires: the wires before store, source and sinks that the fault needs.
        proxy: the proxy before the store that reads commands, if the fault needs it.
        receiver: a receiver of the client library, if one subscribes.
        consumers: a group of the client library, if one reads.
        begun: the size of the store's log at the start, in bytes.
        remarks: findings during the chapter.
        begun_anew: the feeds whose data the store has lost: each has a new baseline, which no sink should get.
    """

    directory: Path
    cast: Cast
    scene: Subscribed
    replicas: Replicas
    load: Load
    served: Served | None
    wires: Mapping[str, Wire]
    proxy: Proxy | None
    receiver: ReceiverProcess | None = None
    consumers: ConsumerGroup | None = None
    begun: int = 0
    remarks: list[str] = field(default_factory=list)
    begun_anew: set[str] = field(default_factory=set)
    _never: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def store(self) -> LastingStore:
        """The server, if it is not embedded."""
        assert isinstance(self.served, LastingStore)
        return self.served

    @property
    def cluster(self) -> Cluster:
        """The store, if it is a cluster."""
        assert isinstance(self.served, Cluster)
        return self.served

    @property
    def sentinels(self) -> Sentinels:
        """The store, if Sentinels watch it."""
        assert isinstance(self.served, Sentinels)
        return self.served

    async def work(self, strike: Strike) -> None:
        """Return when a strike is due: after its number of events and its pause."""
        growth = partial(self.scene.played.growth, strike.events, unless=self._never, seconds=PATIENCE)
        await answered(growth)
        await self.rest(strike.pause)

    async def begin(self) -> None:
        """Return when each feed has been read and delivered, so that a later loss is partial."""
        await until(self._read, "each feed's first events")
        await answered(partial(self.scene.delivered, Deadline(PATIENCE)))

        if isinstance(self.served, LastingStore):
            self.begun = self.served.log.stat().st_size

    async def _read(self) -> bool:
        return all([await self.scene.entries(feed) for feed in self.scene.feeds])

    async def rest(self, seconds: float) -> None:
        """Let this much time pass: the duration is part of the fault."""
        await unless(self._never, seconds)

    @contextmanager
    def outage(self) -> Iterator[None]:
        """For the duration of the block the store answers no process, or refuses what they write."""
        since = time.monotonic()
        try:
            yield
        finally:
            self.scene.outages.append((since, time.monotonic()))

    async def killed(self) -> None:
        """Record that a process was killed, and what is settled."""
        await answered(self.scene.killed)

    async def end(self, one: Daemon, rng: Random) -> None:
        """Kill a process, or stop it in order."""
        if rng.randrange(2):
            await one.kill()
            await self.killed()
        else:
            one.send(signal.SIGTERM)
            await one.left()

    async def quiet(self, patience: float) -> tuple[int, Deadline]:
        """Stop the changes and let the sinks recover; the version that is due, and the deadline."""
        await self.load.stop()
        for wish in self.scene.wishes:
            self.scene.sinks.mood(wish.sink, "ok")
        return await self.scene.played.version(), Deadline(patience)

    async def judged(self, outcome: Outcome, fault: Fault) -> Outcome:
        """Let everything settle, and add the verdicts to the outcome."""
        upto, deadline = await self.quiet(fault.patience)
        stream = await answered(partial(self.scene.published, upto, deadline, begun_anew=self.begun_anew))
        sinks = await answered(partial(self.scene.delivered, deadline, begun_anew=self.begun_anew))
        if fault.loses_writes:
            sinks = {wish.sink: await self._after_loss(wish) for wish in self.scene.wishes}
        self.remarks += self.replicas.strayed() + await told_secrets(self)
        self.remarks += await self._handled(fault.patience, in_order=not fault.loses_writes)
        self.remarks += await self._consumed(fault.patience, after_loss=fault.loses_writes)
        for wish in () if self.begun_anew else self.scene.wishes:
            told = await self.scene.told_by(wish, upto)
            if told is not None and told.lost and not sinks[wish.sink].lost and not stream.lost:
                self.remarks.append(f"{wish.sink} did not get all changes of the source: {told}")
        return replace(
            outcome,
            changes=upto,
            stream=stream,
            sinks=sinks,
            woken=max(len(outcome.chapter.strikes) if fault.replaces else 0, self.replicas.lines(_REPLACED)),
            refused=self.replicas.lines("lost lease "),
            remarks=tuple(self.remarks),
        )

    async def _handled(self, patience: float, *, in_order: bool) -> list[str]:
        """What is wrong at the receiver of the client library, once it has all events or gets no more."""
        if self.receiver is None:
            return []
        streams = {feed: await self.scene.entries(feed) for feed in self.scene.feeds}
        missing = partial(self.receiver.missing, RECEIVED, streams, begun_anew=self.begun_anew)
        await self._wait_while_progressing(missing, patience)
        remarks = [f"{RECEIVED} has not handled {event_id}" for event_id in missing()]
        return remarks + self.receiver.remarks(RECEIVED, streams, in_order=in_order)

    async def _consumed(self, patience: float, *, after_loss: bool) -> list[str]:
        """What is wrong with the group of the client library, once it has all events or gets no more."""
        if self.consumers is None:
            return []
        streams = {feed: await self.scene.entries(feed) for feed in self.scene.feeds}
        missing = partial(self.consumers.missing, GROUP, streams)
        await self._wait_while_progressing(missing, patience, is_over=partial(answered, self._all_is_consumed))
        remarks = [f"{GROUP} has not handled {event_id}" for event_id in missing()]
        if remarks:  # what tells a slow group from one that has passed events over
            client = self.scene.played.client
            for feed in self.scene.feeds:
                state = await client.hgetall(f"poller:{{acme/{feed}}}:group:state:{GROUP}")
                remarks.append(f"{feed}: {await client.xinfo_groups(stream(feed))}, {state}")
        return remarks + self.consumers.wrong(streams, after_loss=after_loss)

    async def _wait_while_progressing(
        self, missing: Callable[[], set[str]], patience: float, *, is_over: Callable[[], Awaitable[bool]] | None = None
    ) -> None:
        """Wait until nothing is missing, or it has not become less for this many seconds.

        Members that fail, die and stall all the time get through a crowd of events slowly, on a busy machine above all.
        """
        fewest, deadline = len(missing()), Deadline(patience)
        while fewest and deadline.left > 0 and not (is_over is not None and await is_over()):
            await self.rest(_LOOK)
            if (left := len(missing())) < fewest:
                fewest, deadline = left, Deadline(patience)

    async def _all_is_consumed(self) -> bool:
        """Whether the group has read and acknowledged all entries, so that none will come again."""
        for feed in self.scene.feeds:
            groups: Any = await self.scene.played.client.xinfo_groups(stream(feed))
            if not any(one["name"] == GROUP.encode() and one["lag"] == one["pending"] == 0 for one in groups):
                return False
        return True

    async def _after_loss(self, wish: Wish) -> Deliveries:
        log = list(self.scene.sinks.of(wish.sink))
        streams = {feed: await self.scene.entries(feed) for feed in self.scene.feeds}
        secret = SECRET if wish.signed else None
        return judge_after_loss(log, streams, await self.log(), secret, begun_anew=self.begun_anew)

    async def keep(self, directory: Path) -> None:
        """Write the evidence: logs, source history and streams."""
        directory.mkdir(exist_ok=True)  # noqa: ASYNC240 -- a local directory, and no other task waits
        self.replicas.keep_logs(directory)
        (directory / "source.jsonl").write_text("\n".join(json.dumps(line, default=str) for line in await self.log()))
        for feed in self.scene.feeds:
            entries = await self.scene.entries(feed)
            lines = (f"{entry} {event.decode()}" for entry, event in entries)
            (directory / f"{feed}.stream").write_text("\n".join(lines))

    async def log(self) -> list[dict[str, Any]]:
        """The source's history."""
        return await self.scene.played.log()
