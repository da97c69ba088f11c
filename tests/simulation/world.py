"""A world in a box: API, store, sinks, daemons and an operator in one loop with simulated time.

Theory of operation
-------------------
A run has four parts. While the plan's time lasts, the source changes, faults strike and the operator acts. Then all is
made well, and what is due must be done within a bound. Then all is at rest, and what the program says of itself must be
true. Then the daemons are stopped, and must end in order. The judges look at all of it; some of them all the time.
A plan may let the world go on before that, with slow feeds and few faults, and is judged once more.

**Invariants**

- The daemons run :func:`poller.app.run`, unchanged; what is replaced is the loop, the network under it, the clock of
  each process and the store's machine.
- All of a run follows from its plan.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
import zlib
from collections import defaultdict
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from poller.app import run as run_daemon
from tests.harness.delivered import OnRecord
from tests.harness.json_values import read as read_json
from tests.harness.requests import Arrived, Ended, ids_of
from tests.harness.scene import RESOURCES, stream
from tests.harness.sinks import Sinks
from tests.simulation import asgi
from tests.simulation.backfills import BegunBackfill
from tests.simulation.counters import Counters, DaemonMetrics
from tests.simulation.faults import strike
from tests.simulation.host import HOST, Host, HostState
from tests.simulation.judge import (
    REPLACES,
    Evidence,
    heard,
    held_from_releasing,
    hidden,
    judged,
    undelivered,
    unpublished,
)
from tests.simulation.loop import SimulatedLoop
from tests.simulation.operator import Operator
from tests.simulation.plan import GONE, Deed, going_on, slowed, until_rest
from tests.simulation.rest import Seen, untrue
from tests.simulation.scenery import ADDRESSES, Api, addable, configured, served_sinks
from tests.simulation.store import Executed, SimulatedStore
from tests.simulation.story import WORLD, Chronicle, logs_to
from tests.simulation.system import system_of_hosts
from tests.simulation.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from poller.control.status import FeedStatus, SubscriptionStatus
    from tests.harness.requests import Line
    from tests.simulation.plan import DaemonPlan, FeedPlan, Plan

_START: Final = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
_ROLES: Final = frozenset({"poll", "deliver"})
_BOUND: Final = 150.0  # seconds; the longest pause of a source that failed is a minute, and two may follow each other
_STOPPING: Final = 15.0  # seconds
_UNDER_WAY: Final = 1.0  # seconds
_ADDED: Final = 2.0  # seconds after the start, subscriptions that the file does not have are added
_BELATES: Final = frozenset({"freeze", "half_open", "partition", "slow"})
_MOST_LOOKS: Final = 8.0  # seconds between two looks whether all is done
_LEARNS: Final = 2.0  # seconds within which a process that starts knows the subscriptions, on a quick network
_PROMPT: Final = 0.05  # seconds; on a slower network a process that ends may run out of time before all is released
_REDIRECTED: Final = 300
_COUNTED: Final = frozenset({"sink_mood", "api_blank", "api_expire", "clock_jump", "noscript"})
"""Faults that keep no answer of a sink from its process, and no process from counting it."""
_FEED_PARTS: Final = frozenset({"state", "snapshots", "dictionaries", "qualifications"})
"""Keys of a feed that mean nothing without one another: where one is gone, the feed begins anew."""

Program = Callable[..., Coroutine[Any, Any, None]]
"""What a daemon runs: takes what :func:`poller.app.run` takes."""


@dataclass(slots=True)
class Result:
    """What came of a run.

    Attributes:
        plan: of the run.
        problems: what was wrong, one line each.
        digest: of the trace.
        seconds: of simulated time.
        events: how many were published.
        requests: how many reached a sink.
        handles: how many steps the loop has run.
        story: the timeline.
        trace: all of it, if it was to be kept.
    """

    plan: Plan
    problems: list[str]
    digest: str = ""
    seconds: float = 0.0
    events: int = 0
    requests: int = 0
    handles: int = 0
    story: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)


def play(plan: Plan, *, keep_trace: bool = False, traces: bool = True, program: Program = run_daemon) -> Result:
    """Play a plan to its end.

    Args:
        plan: of the run.
        keep_trace: whether the trace is kept, and not only its digest.
        traces: whether there is a trace.
        program: what the daemons run.
    """
    loop = SimulatedLoop(Random(f"loop {plan.seed}"), _START)
    chronicle = Chronicle(loop.time, keeps=keep_trace, traces=traces)
    loop.note = chronicle.note if traces else None
    before = structlog.get_config()
    result = Result(plan, [])
    try:
        logs_to(lambda event: chronicle.log(_current(), event))
        with system_of_hosts(loop), _library_logs(chronicle):
            world = World(plan, loop, chronicle, program)
            loop.run_until_complete(world.play())
        result.problems += world.problems
        result.events, result.requests = world.watch.published, world.requests
    except Exception:  # noqa: BLE001 -- a run ends here: whatever ended it is what came of it
        result.problems.append("the world broke: " + "".join(traceback.format_exc(limit=-6)))
    finally:
        structlog.configure(**before)
        loop.close()
    result.problems += [f"the loop was told of {failure}" for failure in loop.failures]
    result.seconds, result.digest, result.handles = loop.time(), chronicle.digest, loop.handles
    result.story, result.trace = chronicle.story, chronicle.trace
    return result


@contextmanager
def _library_logs(chronicle: Chronicle) -> Iterator[None]:
    """Note what libraries log in the trace, and nowhere else."""
    root, handler = logging.getLogger(), _LibraryLog(chronicle)
    before = root.handlers[:]
    root.handlers[:] = [handler]
    try:
        yield
    finally:
        root.handlers[:] = before


class _LibraryLog(logging.Handler):
    def __init__(self, chronicle: Chronicle) -> None:
        super().__init__()
        self._chronicle = chronicle

    def emit(self, record: logging.LogRecord) -> None:
        self._chronicle.note(_current(), f"library {record.name} {record.levelname}")


def _current() -> str:
    host = HOST.get()
    return host.name if host else WORLD


class World:
    """One run.

    Attributes:
        plan: of the run.
        loop: in which everything runs.
        chronicle: what happened.
        feeds: that are in the configuration.
        settings: of all daemons that start now.
        addable: settings of subscriptions that the operator may add.
        removed: the ids of subscriptions that were removed.
        replayed: the ids of subscriptions of which a part was delivered once more.
        backfills: that the operator has begun.
        resumed: when subscriptions were resumed.
        begun_anew: the feeds of which all that was known is forgotten.
        asked_anew: the feeds for which the operator has asked for that; the store may have refused the command.
        told_gone: subscriptions that are paused because their sink wants no more requests.
        purged: whether all records of a resource have gone, so that removals are held.
        problems: what was found wrong.
        requests: how many have reached a sink.
        skews: of the wall clock of each daemon's machine, in seconds.
    """

    def __init__(self, plan: Plan, loop: SimulatedLoop, chronicle: Chronicle, program: Program = run_daemon) -> None:
        """Make the machines; nothing runs yet."""
        self._whole = plan
        self.plan = plan = until_rest(plan)
        self.loop = loop
        self.chronicle = chronicle
        self._program = program
        self.addable = addable(plan)
        self.feeds = list(plan.feeds)
        self.settings = configured(plan, without=self.addable)
        self._resources = {feed.feed: feed.resource for feed in plan.feeds}
        self._retired, self._excused = (
            set[str](),
            set[str](),
        )  # excused: could not release leases when they were stopped
        self._forgotten: set[str] = set()
        self._deleted: dict[str, tuple[str, list[tuple[str, bytes]]]] = {}  # where it was reset, and its stream
        self._restarting = asyncio.Lock()
        self.removed, self.replayed = set[str](), set[str]()
        self.backfills: list[BegunBackfill] = []
        self.resumed: dict[str, list[float]] = {}
        self.requests = 0
        self.skews = {one.host: one.skew for one in plan.daemons}
        self.latency = (plan.latency / 10, plan.latency)
        self._problems: list[str] = []
        self._random = Random(f"world {plan.seed}")
        self._kills: list[float] = []
        self._on_record: defaultdict[str, list[OnRecord]] = defaultdict(list)
        self.begun_anew: set[str] = set()
        self.asked_anew: set[str] = set()
        self.purged = False
        self._torn: set[str] = set()
        self._forgiven: defaultdict[str, set[str]] = defaultdict(set)
        self._lossy = False
        self._forgets = False  # whether subscriptions that were added may be forgotten
        self._down = 0  # restarts of the store that are under way
        self._emptied, self._generations = set[str](), set[Any]()  # the generations that the store has lost
        self._lines: defaultdict[str, list[Line]] = defaultdict(list)
        self._running: dict[str, _Process] = {}
        self._daemons = {one.host: one for one in plan.daemons}
        self._names = {address: name for name, address in ADDRESSES.items()}
        self._names |= {address_of(one.host): one.host for one in plan.daemons}
        machines = {name: loop.host(name, address) for name, address in ADDRESSES.items()}
        self.store_host, self.operator = machines["store"], machines["operator"]
        self._machines = machines
        self._counters = Counters()
        self.store = SimulatedStore(self.store_host.clock.now, Random(f"store {plan.seed}"))
        self.watch = Watch(self.store.read, loop.time, [feed.resource for feed in plan.feeds])
        self._follow(plan)
        self.store.observers.append(self._executed)
        self.api = Api(plan, loop.true_time, self._served)
        self.sinks = Sinks(self._noted, plan.seed, now=loop.time, wall=lambda: loop.true_time().timestamp())
        self._acts = Operator(self)
        for name in machines:
            for other in (*machines, *self._daemons):
                loop.network.delay(name, other, *self.latency)

    def _follow(self, plan: Plan) -> None:
        """Let this be the plan from now on."""
        self.plan = plan
        self.grace = heard(plan) + 1.0
        self.told_gone = {fault.target for fault in plan.faults if fault.kind == "sink_mood" and fault.other in GONE}
        self.watch.steady = not any(fault.kind == "store_clock_jump" for fault in plan.faults)

    @property
    def problems(self) -> list[str]:
        """All that was found wrong."""
        return [*self.watch.problems, *self._problems]

    def found(self, problem: str) -> None:
        """Note something that is wrong."""
        self._problems.append(problem)

    def now(self) -> float:
        """Seconds since the start."""
        return self.loop.time()

    async def rest(self, seconds: float) -> None:
        """Let time pass."""
        over = self.loop.create_future()
        self.loop.call_later(seconds, over.set_result, None)
        await over

    def feeds_of(self, subscription: str) -> tuple[str, ...]:
        """The resources that a subscription names; none: it gets all."""
        return next((one.feeds for one in self.plan.subscriptions if one.id == subscription), ())

    def usual_mood(self, sink: str) -> None:
        """Let a sink do what it does when nothing else is planned."""
        mood = next(one.moods for one in self.plan.subscriptions if one.id == sink)
        self.sinks.mood(sink, mood)

    # The run.

    async def play(self) -> None:
        """All parts."""
        async with AsyncExitStack() as stack:
            await self._open(stack)
            starting = [self._at(daemon.starts, self._started(daemon)) for daemon in self.plan.daemons]
            adding = [self._at(_ADDED, self._acted(Deed(_ADDED, "add_subscription", name))) for name in self.addable]
            await self._acting(self.plan.faults, [*starting, *adding])
            await self._judge()
            if self._whole.lasts and not self.problems:
                await self._go_on()
                await self._judge()
            await self._end()

    async def _acting(self, faults: Sequence[Deed], besides: Sequence[Coroutine[Any, Any, None]] = ()) -> None:
        """Let happen what the plan says, and these faults of it."""
        async with asyncio.TaskGroup() as acting:
            acting.create_task(self._change())
            for one in besides:
                acting.create_task(one)
            for fault in faults:
                acting.create_task(self._at(fault.at, strike(self, fault)))
            for action in self.plan.actions:
                acting.create_task(self._at(action.at, self._acted(action)))

    async def _judge(self) -> None:
        """Make all well, and judge what came of it."""
        await self._mend()
        evidence = await self._until_done()
        self._problems += judged(evidence)
        if not self.problems:
            await self._at_rest()

    async def _go_on(self) -> None:
        """Restart the daemons with slow feeds, and let the rest of the plan happen."""
        self.chronicle.tell(WORLD, "the world goes on at rest")
        before = len(self.plan.faults)
        self._follow(going_on(self._whole, self.now()))
        self.feeds = list(map(slowed, self.feeds))
        await self._configure()
        await self._acting(self.plan.faults[before:])

    async def _open(self, stack: AsyncExitStack) -> None:
        self._listener = await self._on("store", self.loop.create_server(self.store.protocol, ADDRESSES["store"], 6379))
        await self._on("api", asgi.serve(self.api.app, ADDRESSES["api"], 80))
        await self._on("sinks", stack.enter_async_context(served_sinks(self.sinks)))
        for one in self.plan.subscriptions:
            self.usual_mood(one.id)

    async def _on(self, machine: str, work: Coroutine[Any, Any, Any]) -> Any:
        return await self._machines[machine].start(work)

    async def _at(self, seconds: float, work: Coroutine[Any, Any, None]) -> None:
        await self.rest(max(0.0, seconds - self.now()))
        await work

    async def _started(self, daemon: DaemonPlan) -> None:
        self.start(daemon.host)

    async def _acted(self, action: Deed) -> None:
        self.chronicle.tell("operator", f"{action.kind} {action.target}")
        await self.operator.start(self._acts.act(action))

    async def _change(self) -> None:
        rate = self.plan.changes
        while rate > 0:
            await self.rest(self._random.expovariate(rate))
            if self.now() >= self.plan.seconds:
                break
            self.api.change()
            self.chronicle.note("api", f"version {self.api.history.version}")

    async def _mend(self) -> None:
        """End everything that is planned to go wrong."""
        self.chronicle.tell(WORLD, "everything is well from now on")
        for one in self.plan.subscriptions:
            self.sinks.mood(one.id, "ok")
        if self._forgets:
            for name in sorted(self.addable.keys() - self.removed):
                await self._acted(Deed(self.now(), "add_subscription", name))
        self.watch.paused.clear()
        await self.operator.start(self._acts.end_pauses())

    async def _until_done(self) -> Evidence:
        """Wait until nothing is due any more, at most as long as it may take.

        A run that has failed already waits only for what is under way.
        """
        began, look = self.now(), 0.5
        left: Collection[str] = ()
        while True:
            if self.purged or (left and self.plan.removals):
                await self.operator.start(self._acts.release_all())
            if self.watch.given_up:
                await self.operator.start(self._acts.redeliver_all())
            if self._forgets:  # a daemon brings back what the store has lost, a pause too
                await self.operator.start(self._acts.end_pauses())
            evidence = self._evidence()
            left = unpublished(evidence) or undelivered(evidence) or self._backfilling()
            if not left or self.now() >= began + (_UNDER_WAY if self.problems else self.bound):
                break
            self.chronicle.note(WORLD, f"left {str(left)[:200]}")
            await self.rest(look)
            look = min(2 * look, _MOST_LOOKS)
        self.chronicle.tell(WORLD, "all is done" if not left else f"not done in time: {str(left)[:200]}")
        return evidence

    def _backfilling(self) -> list[str]:
        """The consumers with a backfill under way, of feeds that the configuration has."""
        keys = [
            f"poller:{{acme/{feed.feed}}}:sub:{one.id}:state"
            for feed in self.feeds
            for one in self.plan.subscriptions
            if one.id not in self.removed
        ]
        return [key for key in keys if self.store.read("HEXISTS", key, "backfill")]

    @property
    def bound(self) -> float:
        """Seconds within which all that is due must be done when everything is well."""
        longest = max([feed.interval + feed.jitter for feed in self.plan.feeds])
        reconcile = max([feed.reconcile or 0.0 for feed in self.plan.feeds])
        cron = 60.0 if any(feed.cron for feed in self.plan.feeds) else 0.0
        readings = 6 if self.purged or self.plan.removals else 2
        return _BOUND + 3 * self.plan.ttl + 3 * longest + readings * reconcile + 3 * cron

    def _evidence(self) -> Evidence:
        self.begun_anew |= {feed for feed in self.asked_anew if self._reset_of(feed) != "0-0"}
        streams: dict[str, list[tuple[str, bytes]]] = {}
        for feed in self.watch.feeds:
            found: Any = self.store.read("XRANGE", stream(feed), "-", "+")
            streams[feed] = [(bytes(entry).decode(), bytes(fields[1])) for entry, fields in found]
            if feed in self._deleted and not found:
                streams[feed] = self._deleted[feed][1]
        return Evidence(
            self.plan,
            self.api.log(),
            self.api.history.version,
            streams,
            self._lines,
            begun_anew=self.begun_anew,
            emptied=self._emptied,
            lossy=self._lossy,
            kills=self._kills,
            resumed=self.resumed,
            on_record=self._on_record,
            replayed=self.replayed,
            removed=self.removed,
            resources=self._resources,
            retired=self._retired,
            resets={feed: self._reset_of(feed) for feed in sorted(self.begun_anew)},
            restored={feed for feed in self.begun_anew if self._is_restored(feed)},
            torn={feed: self.watch.archive.get(feed, []) for feed in sorted(self._torn)},
            given_up=self.watch.given_up,
            forgiven=self._forgiven,
            backfills=self.backfills,
        )

    def _reset_of(self, feed: str) -> str:
        """The entry of a stream after which its feed was begun again."""
        found = self.store.read("HGET", f"poller:{{acme/{feed}}}:state", "begun_after")
        return bytes(found).decode() if found else self._deleted.get(feed, ("0-0", []))[0]

    def _is_restored(self, feed: str) -> bool:
        """Whether the store has lost the loss of a feed, too: it goes on as before."""
        return self._generation(feed) in self._generations - {None}

    def _generation(self, feed: str) -> Any:
        return self.store.read("HGET", f"poller:{{acme/{feed}}}:state", "generation")

    async def _at_rest(self) -> None:
        """What the program says of itself must become true, and stay so, and nothing may go on growing."""
        deadline = self.now() + self.bound
        while True:
            feeds, subscriptions = await self.operator.start(self._acts.statuses())
            wrong = untrue(self._seen(feeds, subscriptions))
            if not wrong or self.now() >= deadline:
                break
            await self.rest(2.0)
        self._problems += [f"at rest: {line}" for line in wrong]

    def _seen(self, feeds: Sequence[FeedStatus], subscriptions: Sequence[SubscriptionStatus]) -> Seen:
        subscribed = [one.id for one in self.plan.subscriptions if one.id not in self.removed]
        live = {feed.feed: self.api.history.count(feed.resource) for feed in self.feeds}
        if RESOURCES[3] in live:
            live[RESOURCES[3]] -= hidden(self._evidence())
        daemons = sorted(self._running)
        kept = self._retired if self._lossy or self._belated else self._retired - self._forgotten
        return Seen(feeds, subscriptions, live, subscribed, daemons, self._retired, kept, self._lossy, self.store.read)

    @property
    def _belated(self) -> bool:
        """Whether a process may poll a feed by its former name after that was deleted: it was cut off or suspended."""
        return any(fault.kind in _BELATES for fault in self.plan.faults)

    async def _end(self) -> None:
        # The release of a lease that goes out on a half-open connection has no answer; the lease runs out by itself.
        running = list(self._running)
        deaf, excused = set(filter(self._is_deaf, running)), set(self._excused)
        for name in running:
            await self.stop(name)
        self._problems += self._miscounted(self._counters.count - len(running))
        if not (self._lossy or self._retired or self.begun_anew or self.problems):
            self._problems += await self.operator.start(self._counted())
        if not self.problems:
            spared = {f"poller:{{acme/{feed}}}:lease" for feed in self._forgotten if self._belated}
            left = [(key, owner.rpartition("-")[0]) for key, owner in self._left() if key not in spared]
            self._problems += [
                f"{key} is left"
                for key, process in left
                if process not in excused and process.rpartition("-")[0] not in deaf
            ]

    def _is_deaf(self, name: str) -> bool:
        """Whether a daemon has a half-open connection to the store."""
        return any(end.silent for end in self.loop.network.connections(name, "store"))

    def _left(self) -> Iterator[tuple[str, str]]:
        """The leases that processes have, and which process has each."""
        for key in sorted(bytes(key) for key in self.store.read("KEYS", "*:lease")):
            owner = bytes(self.store.read("GET", key) or b"").decode()
            yield key.decode(), owner.partition("/")[0]

    def _miscounted(self, ended: int) -> Iterator[str]:
        """What the daemons have not counted rightly; so many had ended before."""
        kinds = {fault.kind for fault in self.plan.faults}
        yield from self._counters.requested(cancelled=None if kinds & REPLACES else len(self._whole.actions))
        for one in self.plan.subscriptions:
            arrived = {line.number: line for line in self._lines[one.id] if isinstance(line, Arrived)}
            ends = [line for line in self._lines[one.id] if isinstance(line, Ended)]
            taken = [arrived[end.number] for end in ends if end.status is not None and end.status < _REDIRECTED]
            most = one.concurrency * (one.batch if one.mode == "batch" else 1)
            lost = ended * most if kinds <= _COUNTED | {"kill", "stop"} else None
            yield from self._counters.delivered(one.id, sum(len(ids_of(each)) for each in taken), under_way=lost)

    async def _counted(self) -> list[str]:
        """What is counted is what the sinks have seen; a lost answer, or a killed process, may leave some uncounted."""
        _, subscriptions = await self._acts.statuses()
        exactly = all(fault.kind in _COUNTED for fault in self.plan.faults)
        wrong = []
        for one in subscriptions:
            answers = [line.status for line in self._lines[one.subscription] if isinstance(line, Ended)]
            taken = sum(status is not None and status < _REDIRECTED for status in answers)
            refused = sum(status is not None and status >= _REDIRECTED for status in answers)
            # A request whose connection ended before any answer may be sent again at once, and is no failure then.
            if one.delivered > taken or (
                exactly and (one.delivered != taken or not refused <= one.failed <= len(answers) - taken)
            ):
                told = f"{one.delivered} delivered and {one.failed} failed"
                wrong.append(f"{one.subscription}: {told}; its sink took {taken} and refused {refused}")
        return wrong

    # What happens to daemons.

    def start(self, name: str) -> None:
        """Start a daemon on its machine, unless one runs there."""
        before = self.loop.hosts.get(name)
        if name in self._running or (before is not None and before.state is not HostState.DEAD):
            return  # one that is ending is followed by the one whom its fault starts
        # It cannot know of a feed that is gone, nor how old subscriptions are that nobody has registered again.
        unknown = not self.store.read("EXISTS", "poller:{subscriptions}:registry")
        self._emptied |= {feed for feed in self.begun_anew if unknown or not self.store.read("XLEN", stream(feed))}
        daemon = self._daemons[name]
        skew = timedelta(seconds=self.skews[name])
        host = self.loop.host(name, address_of(name), skew=skew, drift=daemon.drift)
        process = self._running[name] = _Process(host, self._counters.started(name, host.pid), self.now())
        process.task = host.start(self._daemon(process), name=name)
        self.chronicle.tell(name, "started")

    async def _daemon(self, process: _Process) -> None:
        try:
            clock, metrics = process.host.clock, process.metrics
            await self._program(self.settings, {}, stop=process.stop, clock=clock, roles=_ROLES, metrics=metrics)
        except Exception:  # noqa: BLE001 -- a process ends here
            text = traceback.format_exc(limit=-4)
            self.chronicle.tell(process.host.name, f"died: {text}")
            self._problems.append(f"{process.host.name} died: {text}")

    async def stop(self, name: str) -> None:
        """End a daemon in order; one that does not end in time is a problem, and is killed."""
        process = self._running.pop(name, None)
        if process is None:
            return
        self.chronicle.tell(name, "is told to stop")
        process.host.run(process.stop.set)
        assert process.task is not None
        told, deaf = self.now(), self._is_deaf(name)
        _, left = await asyncio.wait({process.task}, timeout=_STOPPING + self._held_up())
        if left:
            self._problems.append(f"{name} has not ended {_STOPPING} s after it was told to stop")
        self._problems += self._counters.ended(name, process.host.pid, under_way=0)
        await process.host.kill()
        if not (left or deaf):
            await self._look_at_leases(process.host, told)

    async def _look_at_leases(self, host: Host, told: float) -> None:
        """A process that has ended in order has no lease, also when its last requests have arrived, if it could."""
        await self.rest(self.latency[1])
        process = f"{host.name}-{host.pid}"
        if self.plan.latency > _PROMPT or held_from_releasing(self.plan, host.name, told, self.now()):
            self._excused.add(process)
            return
        kept = [key for key, owner in self._left() if owner.rpartition("-")[0] == process]
        self._problems += [f"{host.name} was stopped at {told:.3f}, and {key} stays its" for key in kept]

    def _held_up(self) -> float:
        return max([fault.seconds for fault in self.plan.faults], default=0.0)

    async def kill(self, name: str) -> None:
        """End a daemon as SIGKILL does, and note what is on record."""
        process = self._running.pop(name, None)
        if process is None:
            return
        self._problems += self._counters.ended(name, process.host.pid, under_way=len(self.feeds))
        await process.host.kill()
        self._kills.append(self.now())
        for one in self.plan.subscriptions:
            opened = {feed: self._open_at(feed, one.id) for feed in self.watch.feeds}
            last = {feed: found[0] for feed, found in opened.items()}
            waiting = {feed: found[1] for feed, found in opened.items()}
            self._on_record[one.id].append(OnRecord(self.now(), last, waiting))

    def _open_at(self, feed: str, subscription: str) -> tuple[str, frozenset[str]]:
        """Up to where a group has read, and which entries until there are not settled."""
        read, group = self.store.read, f"sub:{subscription}"
        groups: Any = read("XINFO", "GROUPS", stream(feed)) if read("EXISTS", stream(feed)) else []
        known = [dict(zip(one[::2], one[1::2], strict=True)) for one in groups]
        last = next((bytes(one[b"last-delivered-id"]).decode() for one in known if one[b"name"] == group.encode()), "")
        if not last:
            return "0-0", frozenset()
        held: Any = read("XPENDING", stream(feed), group, "-", "+", "100000")
        parked: Any = read("HKEYS", f"poller:{{acme/{feed}}}:{group}:parked")
        return last, frozenset(bytes(entry).decode() for entry in (*(one[0] for one in held), *parked))

    # What happens to the configuration.

    def name_of(self, resource: str) -> str:
        """The name that the feed of a resource has now, or had last."""
        return next((feed.feed for feed in self.feeds if feed.resource == resource), resource)

    def repeats(self, subscription: str) -> None:
        """Note that a part of what was delivered is delivered once more."""
        self.replayed.add(subscription)
        self.watch.repeated.add(subscription)

    async def rename_feed(self, resource: str) -> bool:
        """Give the feed of a resource another name, if it has one; what waits under the former one is still due."""
        before = next((feed for feed in self.feeds if feed.resource == resource), None)
        if before is None:
            return False
        renamed = msgspec.structs.replace(before, name=f"{before.feed}-2")
        self._retired.add(before.feed)
        self._resources[renamed.feed] = resource
        self.watch.feeds.append(renamed.feed)
        self.feeds[self.feeds.index(before)] = renamed
        await self._configure()
        return True

    def about_to_forget(self, feed: str) -> None:
        """The operator deletes a feed: keep what it has published, which nobody can read later."""
        self.watch.deleted.add(feed)
        if entries := self._evidence().streams[feed]:
            self._deleted[feed] = self._reset_of(feed), list(entries)

    def feed_forgotten(self, feed: str) -> None:
        """The operator has deleted what there was of a feed; what no sink has taken until now is due no more."""
        self._forgotten.add(feed)
        evidence = self._evidence()
        for one in self.plan.subscriptions:
            taken = evidence.taken(one.id)
            ids = {read_json(event)["id"] for _, event in evidence.streams[feed]}
            if left := ids - taken:
                self._forgiven[one.id] |= left

    async def drop_feed(self, resource: str) -> FeedPlan | None:
        """Take the feed of a resource out of the configuration, unless it is the last one."""
        gone = next((feed for feed in self.feeds if feed.resource == resource), None)
        if gone is None or len(self.feeds) == 1:
            return None
        self.feeds.remove(gone)
        await self._configure()
        return gone

    async def put_back(self, feed: FeedPlan) -> None:
        """Put a feed into the configuration that was in it before."""
        self.feeds.append(feed)
        await self._configure()

    async def _configure(self) -> None:
        """Have the daemons read the file again: one after another is ended and started."""
        async with self._restarting:
            self.settings = configured(self.plan, without=self.addable, feeds=self.feeds)
            for name in list(self._running):
                if name in self._running:
                    await self.stop(name)
                    self.start(name)

    # What happens to the store.

    async def restart_store(self, seconds: float, *, lost: int) -> None:
        """Restart the store's machine; it has forgotten its last writes."""
        self._listener.close()
        self._down += 1
        for host in (*self._daemons, "operator"):
            self.loop.network.cut(host, "store")
        if lost:
            self.store.lose_last(lost)
            self._forgot()
        else:
            self.store.lose_last(0)
        await self.rest(seconds)
        self._down -= 1
        if not self._down:
            serving = self.loop.create_server(self.store.protocol, ADDRESSES["store"], 6379)
            self._listener = await self._on("store", serving)

    async def fail_over(self, lost: int) -> None:
        """Another server takes over that did not get the last writes."""
        for host in (*self._daemons, "operator"):
            self.loop.network.cut(host, "store")
        self.store.fail_over(lost)
        if lost:
            self._forgot()

    def forget_feed(self, feed: str) -> None:
        """Delete all keys of a feed."""
        if not self.store.read("XLEN", stream(feed)):
            self._emptied.add(feed)
        self._generations.add(self._generation(feed))
        found: Any = self.store.read("KEYS", f"poller:{{acme/{feed}}}:*")
        for key in found:
            self.store.evict(bytes(key))
        self.watch.archive.pop(feed, None)  # nothing goes on from there
        self.begun_anew.add(feed)
        self._forgot()

    def forget_key(self, name: str) -> None:
        """Delete a single key; what goes with it is excused, and nothing else."""
        key = f"poller:{name}"
        if not self.store.read("EXISTS", key):
            return
        tag, _, tail = name.partition("}:")
        feed, family = tag.partition("/")[2], tail.rpartition(":")[2]
        subscription = tail.split(":")[1] if tail.startswith("sub:") else ""
        if subscription and family in ("parked", "letters"):
            entries: Any = self.store.read("HKEYS", key)
            lost = [self.watch.id_of(feed, bytes(entry).decode()) for entry in entries]
            self._forgiven[subscription].update(id_ for id_ in lost if id_)
        if feed:
            self._generations.add(self._generation(feed))
        self.store.evict(key)
        self.watch.evicted(key)
        if subscription:
            if family == "state":
                self.repeats(subscription)
        elif feed:
            self._forgot_of(feed, family)
        elif family in ("paused", "registry"):
            self._forgets = self._forgets or family == "registry"
            self.watch.paused.clear()

    def _forgot_of(self, feed: str, family: str) -> None:
        """A key of a feed is gone."""
        if family in _FEED_PARTS:
            self.begun_anew.add(feed)
        elif family == "events":
            self._torn.add(feed)
            self._lossy = True
            self.watch.forgot()
        elif family == "pause":
            self.watch.paused.pop(feed, None)

    def forget_all(self) -> None:
        """Delete everything."""
        learns = _LEARNS + 10 * self.plan.latency
        starting = any(self.now() - process.began < learns for process in self._running.values())
        self._generations.update(map(self._generation, self.watch.feeds))
        self.store.flush_all()
        self.watch.archive.clear()
        self.begun_anew.update(self.watch.feeds)
        self._forgot()
        if starting:  # such a process does not know yet how old subscriptions are, and may register them first
            self._emptied |= self.begun_anew

    def _forgot(self) -> None:
        self._lossy = self._forgets = True
        emptied = {feed for feed in self.watch.feeds if not self.store.read("XLEN", stream(feed))}
        self._emptied |= emptied - self.begun_anew
        self.begun_anew |= emptied
        self.watch.forgot()
        self.watch.paused.clear()

    # What is seen.

    def _noted(self, line: Line) -> None:
        self._lines[line.sink].append(line)
        if isinstance(line, Arrived):
            self.requests += 1
            self.watch.request(line)
        else:
            self.chronicle.note("sinks", f"{line.sink} {line.number} {line.status}")

    def _executed(self, done: Executed) -> None:
        host = self._names.get(done.peer, done.peer)
        if self.chronicle.traces:
            written = " ".join(key.decode() for key in done.written)
            what = f"{host} {done.words[0].decode()} {len(done.words)} {zlib.crc32(done.answer):08x}"
            self.chronicle.note("store", f"{what} writes {written}" if written else what)
        self.watch.executed(host, done)
        self._counters.executed(done)

    def _served(self, address: str, status: int) -> None:
        self._counters.served(self._names.get(address, address), status)


def address_of(daemon: str) -> str:
    """The address of a daemon's machine."""
    return f"10.0.0.{10 + int(daemon.rpartition('-')[2])}"


class _Process:
    """A daemon that runs."""

    def __init__(self, host: Host, metrics: DaemonMetrics, began: float) -> None:
        self.host = host
        self.metrics = metrics
        self.began = began
        self.stop = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
