"""The plan of a simulated run: all that happens in it, drawn from one seed.

**Invariants**

- The same seed and version give the same plan; nothing else is asked.
- A plan can be written down as JSON and read again, so that a shrunken one can be kept and played.
- Faults and actions are independent elements: a plan without some of them is a plan, too.
- Each seed switches most kinds of faults off (swarm testing), so that what one fault needs is not hidden by another.

Pure.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

import msgspec

from poller.store.keys import FEED_KEYS, ConsumerKeys, MemberKeys, SubscriptionKeys
from tests.harness.scene import RESOURCES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

STORE, API, SINKS = "store", "api", "sinks"
GONE: Final = ("410", "415")
"""What a sink answers that wants no more requests: its subscription is paused."""


class FeedPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """A feed: how often it is polled, in seconds, and how it is read.

    Attributes:
        cron: instead of the interval.
        name: of the feed, where it is not the resource's.
    """

    resource: str
    interval: float
    jitter: float
    limit: int
    reconcile: float | None
    cron: str | None = None
    name: str = ""

    @property
    def feed(self) -> str:
        """The feed's name within its source."""
        return self.name or self.resource


class SubscriptionPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """A subscription and its sink.

    Attributes:
        id: its id, and the path of its sink.
        mode: of the requests.
        signed: whether it has a secret.
        concurrency: requests in flight at most.
        rate: requests a second; None: unlimited.
        linger: seconds that a batch waits.
        batch: events of a batch at most.
        timeout: seconds that one attempt may take.
        first: seconds before the second attempt.
        further: seconds before each later attempt.
        feeds: the resources; empty: all.
        moods: of the sink while nothing else is planned, as :mod:`tests.harness.sinks` takes them.
        added: added by the operator at run time, not in the file.
        tries: waits of its schedule; an event that has failed once more is a dead letter. 0: they are never used up.
    """

    id: str
    mode: str
    signed: bool
    concurrency: int
    rate: float | None
    linger: float
    batch: int
    timeout: float
    first: float
    further: float
    feeds: tuple[str, ...]
    moods: str
    added: bool = False
    tries: int = 0


class DaemonPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process of the program: its host, when it starts, how wrong its wall clock is (seconds), how fast it runs."""

    host: str
    starts: float
    skew: float
    drift: float


class Deed(msgspec.Struct, frozen=True, omit_defaults=True):
    """A fault or an operator's action.

    Attributes:
        at: seconds after the start.
        kind: one of :data:`FAULTS` or :data:`ACTIONS`.
        target: the host, subscription or feed that it meets.
        other: the other end, of a fault of the network; the argument of an action.
        seconds: how long it lasts.
        strength: what this means, the kind says.
    """

    at: float
    kind: str
    target: str
    other: str = ""
    seconds: float = 0.0
    strength: float = 0.0


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """A run.

    Attributes:
        seed: of all that the run itself draws: latencies, nonces, moods.
        seconds: how long changes, faults and actions go on.
        records: how many the source has at the start.
        changes: how many it makes a second, on average.
        removals: which part of them are removals.
        ttl: of the leases, in seconds.
        timeout: of one exchange with the source, in seconds.
        latency: of the network, in seconds, at most.
        paging: a profile of the sandbox, or empty.
        lasts: until when, in seconds, the same world goes on at rest after all of that is judged; 0: it ends then.
            Faults and actions after ``seconds`` happen in this time, see :func:`going_on`.
    """

    seed: int
    seconds: float
    records: int
    changes: float
    removals: float
    ttl: float
    timeout: float
    latency: float
    daemons: tuple[DaemonPlan, ...]
    feeds: tuple[FeedPlan, ...]
    subscriptions: tuple[SubscriptionPlan, ...]
    faults: tuple[Deed, ...] = ()
    actions: tuple[Deed, ...] = ()
    profile: str = ""
    lasts: float = 0.0

    @property
    def loses_writes(self) -> bool:
        """Whether the store forgets what it has acknowledged."""
        return any(fault.kind in LOSSES and fault.strength > 0 for fault in self.faults)

    @property
    def forgets(self) -> bool:
        """Whether the store forgets whole keys."""
        return any(fault.kind in FORGETS for fault in self.faults)


def encode(plan: Plan) -> bytes:
    """The plan as JSON."""
    return msgspec.json.format(msgspec.json.encode(plan), indent=1)


def decode(text: bytes) -> Plan:
    """The plan of a text made by :func:`encode`."""
    return msgspec.json.decode(text, type=Plan)


def drawn(seed: int, *, hours: float | None = None, lean: Sequence[str] = ()) -> Plan:
    """The plan of a seed.

    Args:
        seed: any number.
        hours: how long it lasts; None: the seed says, mostly a minute or two.
        lean: the kinds of faults and actions that are on, whatever the seed says, and words of :data:`LEANINGS`;
            none: the seed says.
    """
    rng = Random(f"plan {seed}")
    seconds = hours * 3600 if hours is not None else rng.choice((30.0, 45.0, 60.0, 60.0, 90.0, 120.0))
    ttl = rng.choice((1.0, 1.0, 2.0, 3.0, 10.0))
    daemons = tuple(_daemon(rng, number) for number in range(1, rng.choice((2, 2, 2, 3, 4)) + 1))
    resources = _some(rng, RESOURCES[:3], least=1)
    if rng.random() < _RARELY:
        resources = list(RESOURCES)  # the listings of the last one follow from what the others name
    removals = rng.choice((0.0, 0.05, 0.2))
    feeds = tuple(_feed(rng, resource, removals=removals > 0) for resource in resources)
    if "cron" in lean:
        feeds = (msgspec.structs.replace(feeds[0], cron="* * * * *"), *feeds[1:])
    if "skew" in lean:
        daemons = (msgspec.structs.replace(daemons[0], skew=30 * 86400.0), *daemons[1:])
    subscriptions = tuple(_subscription(rng, number, resources) for number in range(rng.choice((1, 1, 2, 2, 3))))
    plan = Plan(
        seed=seed,
        seconds=seconds,
        records=rng.choice((5, 20, 40, 80)),
        changes=rng.choice((0.2, 0.5, 1.0, 2.0, 4.0)),
        removals=removals,
        ttl=ttl,
        timeout=rng.choice((2.0, 5.0, 10.0)),
        latency=rng.choice((0.0005, 0.002, 0.01, 0.05)),
        daemons=daemons,
        feeds=feeds,
        subscriptions=subscriptions,
    )
    if "busy" in lean:
        quick = tuple(msgspec.structs.replace(feed, interval=0.5, jitter=0.0) for feed in feeds)
        eager = tuple(msgspec.structs.replace(one, concurrency=8, rate=None, linger=0.02) for one in plan.subscriptions)
        plan = msgspec.structs.replace(plan, ttl=1.0, changes=4.0, latency=0.05, feeds=quick, subscriptions=eager)
    if "distant" in lean:
        patient = tuple(msgspec.structs.replace(one, timeout=3.0, moods="ok") for one in plan.subscriptions)
        plan = msgspec.structs.replace(plan, ttl=3.0, timeout=10.0, latency=0.3, subscriptions=patient)
    if "brisk" in lean:
        brisk = tuple(msgspec.structs.replace(one, tries=2) for one in plan.subscriptions)
        plan = msgspec.structs.replace(plan, subscriptions=brisk)
    if "few" in lean:
        plan = msgspec.structs.replace(plan, records=3, removals=0.0)
    faults = tuple(
        _leaning(one, plan, lean) for one in _deeds(rng, plan, _FAULTS, lean, most=30 if "busy" in lean else 12)
    )
    actions = _deeds(rng, plan, _ACTIONS, lean, most=10)
    further = _deeds(Random(f"further {seed}"), plan, _FURTHER_ACTIONS, lean, most=3)
    latest = _deeds(Random(f"latest {seed}"), plan, _LATEST_ACTIONS, lean, most=3)
    return msgspec.structs.replace(plan, faults=faults, actions=tuple(sorted((*actions, *further, *latest), key=_when)))


def brief(seed: int) -> Plan:
    """The plan of a seed, made short and small for the quick suite: the same kinds of faults, close together."""
    plan = drawn(seed, hours=_BRIEF / 3600)
    feeds = tuple(msgspec.structs.replace(feed, interval=max(feed.interval, 1.0), cron=None) for feed in plan.feeds[:2])
    known, hosts = {feed.resource for feed in feeds}, {one.host for one in plan.daemons[:2]}
    subscriptions = tuple(
        msgspec.structs.replace(one, feeds=tuple(feed for feed in one.feeds if feed in known))
        for one in plan.subscriptions[:2]
    )
    there = known | hosts | {one.id for one in subscriptions} | {STORE, API}
    return msgspec.structs.replace(
        plan,
        records=min(plan.records, 20),
        changes=min(plan.changes, 2.0),
        daemons=plan.daemons[:2],
        feeds=tuple(msgspec.structs.replace(feed, reconcile=min(feed.reconcile or 10.0, 10.0)) for feed in feeds),
        subscriptions=subscriptions,
        faults=tuple(one for one in plan.faults if one.target in there and (one.kind != "evict" or one.other in known)),
        actions=tuple(one for one in plan.actions if one.target in there),
    )


def lasting(seed: int, seconds: float) -> Plan:
    """The brief plan of a seed, after which the same world goes on for about so many seconds in all, with few faults.

    So an hour of operation costs little: a world at rest is played many times as fast as one in which much happens, and
    one of which a daemon is stopped for most of that time, twice as fast as with both.
    """
    plan = brief(seed)
    rng = Random(f"lasting {seed}")
    lasts = seconds - 0.6 * _SLOW  # what is due then takes some time
    slow = msgspec.structs.replace(_slowed(plan), seconds=max(lasts - 3 * plan.seconds, _BRIEF))
    faults, actions = _deeds(rng, slow, _FAULTS, (), most=2), _deeds(rng, slow, _ACTIONS, (), most=1)
    if rng.random() < _ALONE:
        faults += (Deed(1.0, "stop", plan.daemons[-1].host, seconds=slow.seconds - 3.0),)
    return msgspec.structs.replace(
        plan,
        lasts=lasts,
        faults=(*plan.faults, *_later(faults, plan.seconds)),
        actions=(*plan.actions, *_later(actions, plan.seconds)),
    )


def until_rest(plan: Plan) -> Plan:
    """The plan up to when the world is to go on at rest; all of it, if it is not."""
    if not plan.lasts:
        return plan
    faults, actions = (tuple(one for one in deeds if one.at <= plan.seconds) for deeds in (plan.faults, plan.actions))
    return msgspec.structs.replace(plan, faults=faults, actions=actions, lasts=0.0)


def going_on(plan: Plan, now: float) -> Plan:
    """The plan of a world that goes on at rest from now on: slow feeds, long leases, few changes.

    Its faults are those that there were and those to come; its actions are those to come.
    """
    before = until_rest(plan)
    faults = _later([one for one in plan.faults if one not in before.faults], now - plan.seconds)
    actions = _later([one for one in plan.actions if one not in before.actions], now - plan.seconds)
    last = max([now, *(one.at for one in (*faults, *actions))])
    return msgspec.structs.replace(
        _slowed(before), seconds=max(plan.lasts, last + 1.0), faults=(*before.faults, *faults), actions=actions
    )


def slowed(feed: FeedPlan) -> FeedPlan:
    """The feed with a long interval."""
    reconcile = feed.reconcile and max(feed.reconcile, 2 * _SLOW)
    return msgspec.structs.replace(feed, interval=_SLOW, jitter=_SLOW / 10, reconcile=reconcile, cron=None)


def _slowed(plan: Plan) -> Plan:
    feeds = tuple(map(slowed, plan.feeds))
    return msgspec.structs.replace(plan, ttl=max(plan.ttl, 10.0), changes=_FEW_CHANGES, feeds=feeds)


def _later(deeds: Sequence[Deed], seconds: float) -> tuple[Deed, ...]:
    return tuple(msgspec.structs.replace(one, at=round(one.at + seconds, 3)) for one in deeds)


def calm(seed: int, *, daemons: int = 1, feeds: int = 1, subscriptions: int = 1, seconds: float = 30.0) -> Plan:
    """A plan without faults and actions."""
    rng = Random(f"calm {seed}")
    resources = list(RESOURCES[:feeds])
    return Plan(
        seed=seed,
        seconds=seconds,
        records=20,
        changes=1.0,
        removals=0.05,
        ttl=2.0,
        timeout=5.0,
        latency=0.002,
        daemons=tuple(DaemonPlan(f"daemon-{number}", 0.0, 0.0, 0.0) for number in range(1, daemons + 1)),
        feeds=tuple(FeedPlan(resource, 1.0, 0.1, 40, 20.0) for resource in resources),
        subscriptions=tuple(
            msgspec.structs.replace(_subscription(rng, number, resources), moods="ok", rate=None)
            for number in range(subscriptions)
        ),
    )


def resting(seconds: float) -> Plan:
    """Two daemons, a feed with the default interval and a subscription, for which nothing happens so long."""
    plan = calm(1, daemons=2)
    feed = msgspec.structs.replace(plan.feeds[0], interval=60.0, jitter=6.0, reconcile=None)
    ends = Deed(seconds, "status", STORE)
    return msgspec.structs.replace(plan, seconds=seconds, changes=0.0, ttl=10.0, feeds=(feed,), actions=(ends,))


_BRIEF: Final = 8.0  # seconds
_SLOW: Final = 30.0  # seconds between two rounds of a feed of a world at rest
_ALONE: Final = 0.8  # of the worlds at rest have one daemon less for most of their time
_FEW_CHANGES: Final = 0.05  # a second
_OFTEN: Final = 0.5
_RARELY: Final = 0.15


def _some(rng: Random, names: Sequence[str], *, least: int) -> list[str]:
    return sorted(rng.sample(names, rng.randint(least, len(names))))


def _daemon(rng: Random, number: int) -> DaemonPlan:
    skew = rng.choice((0.0, 0.0, 0.0, rng.uniform(-2, 2), rng.uniform(-3600, 3600), rng.uniform(-30, 30) * 86400))
    drift = rng.choice((0.0, 0.0, rng.uniform(-2e-4, 2e-4)))
    starts = 0.0 if number == 1 else rng.choice((0.0, rng.uniform(0, 1), rng.uniform(0, 20)))
    return DaemonPlan(f"daemon-{number}", starts, skew, drift)


def _feed(rng: Random, resource: str, *, removals: bool) -> FeedPlan:
    interval = rng.choice((0.5, 1.0, 2.0, 5.0, 10.0))
    reconcile = rng.choice((None, 15.0, 30.0, 60.0))
    if removals and reconcile is None:
        reconcile = 20.0  # only a full reading finds what is gone
    jitter = interval * rng.choice((0.0, 0.1, 0.3))
    cron = "* * * * *" if rng.random() < _RARELY / 3 else None
    return FeedPlan(resource, interval, jitter, rng.choice((3, 10, 40, 200)), reconcile, cron)


_MOODS: Final = (
    "ok",
    "ok=30 slow=15",
    "ok=30 slow=15 500=2 reset=0.5",
    "ok=20 slow=5 503=5",
    "ok=30 429/2=0.5 500=1",
    "ok=40 hang=0.5",
)


def _subscription(rng: Random, number: int, resources: Sequence[str]) -> SubscriptionPlan:
    return SubscriptionPlan(
        id=("one", "two", "three", "four")[number],
        mode=rng.choice(("structured", "structured", "binary", "batch")),
        signed=rng.random() < _OFTEN,
        concurrency=rng.choice((1, 2, 8)),
        rate=rng.choice((None, None, None, 20.0)),
        linger=rng.choice((0.02, 0.2, 1.0)),
        batch=rng.choice((2, 10, 100)),
        timeout=rng.choice((0.4, 1.0, 3.0)),
        first=rng.choice((0.05, 0.5)),
        further=rng.choice((0.15, 1.0)),
        feeds=tuple(_some(rng, resources, least=1)) if rng.random() < _RARELY else (),
        moods=rng.choice(_MOODS),
        added=number > 0 and rng.random() < _RARELY,
        tries=rng.choice((2, 5)) if rng.random() < _RARELY else 0,
    )


# What may happen. Each of these draws one, but for its moment.

_Draw = "Callable[[Random, Plan, float], Deed]"


def _host(rng: Random, plan: Plan) -> str:
    return rng.choice(plan.daemons).host


def _end(rng: Random) -> str:
    return rng.choice((STORE, STORE, STORE, API, SINKS))


def _sink(rng: Random, plan: Plan) -> str:
    return rng.choice(plan.subscriptions).id


def _resource(rng: Random, plan: Plan) -> str:
    return rng.choice(plan.feeds).resource


def _key(rng: Random, plan: Plan) -> str:
    """A key of the store, without its prefix: each family is as likely as another of its scope."""
    scope = rng.choice(("feed", "feed", "consumer", "consumer", "subscriptions", "members"))
    if scope == "feed":
        return f"{{acme/{_resource(rng, plan)}}}:{rng.choice(FEED_KEYS)}"
    if scope == "consumer":
        tail = f"sub:{_sink(rng, plan)}:{rng.choice(ConsumerKeys.__struct_fields__)}"
        return f"{{acme/{_resource(rng, plan)}}}:{tail}"
    if scope == "subscriptions":
        return f"{{subscriptions}}:{rng.choice(SubscriptionKeys.__struct_fields__)}"
    return rng.choice(
        (*(f"{{members}}:{name}" for name in MemberKeys.__struct_fields__), "{operations}:feeds", "{operations}:orders")
    )


def _is_movable(plan: Plan) -> bool:
    """Whether feeds may leave the configuration: no subscription names them, and no listing follows from them."""
    return not any(one.feeds for one in plan.subscriptions) and _is_independent(plan)


def _is_independent(plan: Plan) -> bool:
    return all(feed.resource != RESOURCES[3] for feed in plan.feeds)


def _long(rng: Random, plan: Plan) -> float:
    """A time that is shorter than a lease, about as long, or longer."""
    return rng.choice((rng.uniform(0, 0.5), rng.uniform(0.5, 1.5), rng.uniform(1.5, 4))) * plan.ttl


_FAULTS: Final[dict[str, Callable[[Random, Plan, float], Deed]]] = {
    "kill": lambda rng, plan, at: Deed(at, "kill", _host(rng, plan), seconds=rng.choice((0.1, _long(rng, plan)))),
    "stop": lambda rng, plan, at: Deed(at, "stop", _host(rng, plan), seconds=rng.choice((0.1, _long(rng, plan)))),
    "freeze": lambda rng, plan, at: Deed(at, "freeze", _host(rng, plan), seconds=_long(rng, plan)),
    "cut": lambda rng, plan, at: Deed(at, "cut", _host(rng, plan), _end(rng)),
    "partition": lambda rng, plan, at: Deed(at, "partition", _host(rng, plan), _end(rng), seconds=_long(rng, plan)),
    "half_open": lambda rng, plan, at: Deed(at, "half_open", _host(rng, plan), _end(rng)),
    "slow": lambda rng, plan, at: Deed(
        at, "slow", _host(rng, plan), _end(rng), seconds=_long(rng, plan), strength=rng.choice((0.05, 0.3, 1.0))
    ),
    "lose_request": lambda rng, plan, at: Deed(at, "lose_request", _host(rng, plan), _end(rng)),
    "lose_reply": lambda rng, plan, at: Deed(at, "lose_reply", _host(rng, plan), _end(rng)),
    "clock_jump": lambda rng, plan, at: Deed(
        at, "clock_jump", _host(rng, plan), strength=rng.choice((-1, 1)) * rng.choice((0.5, 30.0, 3600.0, 86400.0 * 30))
    ),
    "store_clock_jump": lambda rng, _, at: Deed(
        at, "store_clock_jump", STORE, strength=rng.choice((-1, 1)) * rng.choice((0.5, 30.0, 3600.0, 86400.0))
    ),
    "store_restart": lambda rng, _, at: Deed(at, "store_restart", STORE, seconds=rng.choice((0.1, 1.0, 5.0))),
    "store_loss": lambda rng, _, at: Deed(
        at, "store_loss", STORE, seconds=rng.choice((0.1, 1.0)), strength=rng.choice((1, 3, 10, 40))
    ),
    "failover": lambda rng, _, at: Deed(
        at, "failover", STORE, seconds=rng.choice((0.1, 1.0)), strength=rng.choice((0, 1, 5, 30))
    ),
    "store_full": lambda rng, plan, at: Deed(at, "store_full", STORE, seconds=_long(rng, plan)),
    "store_readonly": lambda rng, plan, at: Deed(at, "store_readonly", STORE, seconds=_long(rng, plan)),
    "store_loading": lambda rng, plan, at: Deed(at, "store_loading", STORE, seconds=_long(rng, plan)),
    "noscript": lambda _rng, _, at: Deed(at, "noscript", STORE),
    "evict": lambda rng, plan, at: Deed(at, "evict", STORE, _resource(rng, plan), strength=rng.random()),
    "flush": lambda _rng, _, at: Deed(at, "flush", STORE),
    "sink_down": lambda rng, plan, at: Deed(
        at, "sink_mood", _sink(rng, plan), rng.choice(("503", "reset", "hang", "500")), seconds=rng.uniform(0.5, 12)
    ),
    "sink_pause": lambda rng, plan, at: Deed(
        at, "sink_mood", _sink(rng, plan), rng.choice(("429/2", "503/3", "429@4")), seconds=rng.uniform(0.1, 3)
    ),
    "api_blank": lambda rng, plan, at: (
        # Without a call for one record, two empty listings are a removal. What an empty delta left out is found by the
        # next full reading alone.
        Deed(at, "api_expire", API)
        if any(feed.resource == RESOURCES[3] or feed.reconcile is None for feed in plan.feeds)
        else Deed(at, "api_blank", API, seconds=rng.uniform(0.5, 6))
    ),
    "api_expire": lambda rng, _, at: Deed(at, "api_expire", API, strength=rng.choice((0, 1))),
    "sink_gone": lambda rng, plan, at: Deed(
        at, "sink_mood", _sink(rng, plan), rng.choice(GONE), seconds=rng.uniform(0.1, 6)
    ),
    "evict_key": lambda rng, plan, at: Deed(at, "evict_key", STORE, _key(rng, plan)),
}

_ACTIONS: Final[dict[str, Callable[[Random, Plan, float], Deed]]] = {
    "pause_feed": lambda rng, plan, at: Deed(
        at, "pause_feed", _resource(rng, plan), seconds=rng.choice((0.5, rng.uniform(1, 15)))
    ),
    "pause_subscription": lambda rng, plan, at: Deed(
        at, "pause_subscription", _sink(rng, plan), seconds=rng.choice((0.5, rng.uniform(1, 15)))
    ),
    "resync": lambda rng, plan, at: Deed(at, "resync", _resource(rng, plan)),
    "replay": lambda rng, plan, at: Deed(at, "replay", _sink(rng, plan), strength=rng.random()),
    "remove_subscription": lambda rng, plan, at: Deed(at, "remove_subscription", _sink(rng, plan), seconds=1.0),
    "status": lambda _rng, _, at: Deed(at, "status", STORE),
    "redeliver": lambda rng, plan, at: Deed(at, "redeliver", _sink(rng, plan)),
    "release": lambda rng, plan, at: Deed(at, "release", _resource(rng, plan)),
    "reset_feed": lambda rng, plan, at: Deed(at, "reset_feed", _resource(rng, plan)),
    "rename_feed": lambda rng, plan, at: Deed(
        at, "rename_feed" if _is_movable(plan) else "resync", _resource(rng, plan)
    ),
    "drop_feed": lambda rng, plan, at: Deed(
        at, "drop_feed" if _is_movable(plan) else "resync", _resource(rng, plan), seconds=rng.uniform(0.5, 20)
    ),
    "purge": lambda rng, plan, at: (
        # Only a full reading finds what is gone.
        Deed(at, "purge", _resource(rng, plan))
        if _is_independent(plan) and all(feed.reconcile for feed in plan.feeds)
        else Deed(at, "release", _resource(rng, plan))
    ),
}

_FURTHER_ACTIONS: Final[dict[str, Callable[[Random, Plan, float], Deed]]] = {
    "forget_feed": lambda rng, plan, at: Deed(
        at, "forget_feed" if _is_movable(plan) else "resync", _resource(rng, plan), seconds=rng.uniform(0.1, 10)
    ),
}
"""What was added later and is drawn by itself, so that the other faults and actions of a seed stay what they were."""

_LATEST_ACTIONS: Final[dict[str, Callable[[Random, Plan, float], Deed]]] = {
    "backfill": lambda rng, plan, at: Deed(at, "backfill", _sink(rng, plan)),
}
"""Likewise, after those."""

LOSSES: Final = frozenset({"store_loss", "failover"})
FORGETS: Final = frozenset({"evict", "flush"})
_RARE: Final = frozenset(
    {
        *("store_loss", "failover", "evict", "evict_key", "flush", "store_clock_jump"),
        *("reset_feed", "rename_feed", "drop_feed", "forget_feed", "purge"),
    }
)
"""What changes how the run is judged is on in few seeds, so that most seeds are judged most strictly."""


LEANINGS: Final = {
    "cron": "the first feed has a cron expression",
    "brisk": "schedules of retries are short, so that there are dead letters",
    "skew": "the first process has a clock that is 30 days ahead",
    "busy": "short leases, short intervals, many changes",
    "distant": "the network takes up to 0.3 s",
    "few": "few records, so that the same one changes often",
    "long": "what lasts, lasts ten seconds at least",
    "late": "what is slow takes up to three leases",
    "far": "a clock that is set is set 30 days ahead",
}
"""What a seed may lean towards besides kinds of faults and actions."""


def _leaning(deed: Deed, plan: Plan, lean: Sequence[str]) -> Deed:
    if "long" in lean and deed.seconds:
        deed = msgspec.structs.replace(deed, seconds=max(deed.seconds, 10.0))
    if "late" in lean and deed.kind == "slow":
        deed = msgspec.structs.replace(deed, strength=3 * plan.ttl)
    if "far" in lean and deed.kind == "clock_jump":
        deed = msgspec.structs.replace(deed, strength=30 * 86400.0)
    return deed


def _when(deed: Deed) -> float:
    return deed.at


def _deeds(
    rng: Random, plan: Plan, kinds: dict[str, Callable[[Random, Plan, float], Deed]], lean: Sequence[str], *, most: int
) -> tuple[Deed, ...]:
    on = [name for name in kinds if rng.random() < (_RARELY / 2 if name in _RARE else _RARELY * 2)]
    count = rng.randint(0, most) if on else 0
    if lean:
        on = [name for name in kinds if name in lean]
        count = most if on else 0
    begin, end = 2.0, plan.seconds
    return tuple(
        sorted(
            (kinds[rng.choice(on)](rng, plan, round(rng.uniform(begin, end), 3)) for _ in range(count)),
            key=_when,
        )
    )
