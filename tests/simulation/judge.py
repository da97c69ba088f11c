"""What is wrong with a run that is over: the chaos suite's judges, asked what a simulated world can tell exactly.

**Invariants**

- Nothing of the program is believed: only the source's history, the streams and the sinks' own log.
- What a fault excuses is said here, for each fault, and nothing else is excused.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from tests.chaos.outcome import IN_FLIGHT
from tests.harness.after_loss import judge_after_loss
from tests.harness.checker import Verdict, judge
from tests.harness.delivered import Asked, Deliveries, Entry, OnRecord, order
from tests.harness.deliveries import judge_deliveries
from tests.harness.json_values import read
from tests.harness.requests import Arrived, Ended, ids_of
from tests.harness.wishes import SECRET
from tests.simulation.backfills import fallen_revisions, missing_records
from tests.simulation.plan import GONE, SINKS, STORE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from tests.harness.requests import Line
    from tests.simulation.backfills import BegunBackfill
    from tests.simulation.plan import Deed, Plan, SubscriptionPlan

_SHOWN = 4
REPLACES = frozenset(
    {
        "freeze",
        "partition",
        "half_open",
        "slow",
        "cut",
        "lose_request",
        "lose_reply",
        "store_restart",
        "store_loading",
        "store_readonly",
        "store_full",
        "store_clock_jump",
        "store_loss",
        "failover",
        "flush",
        "evict",
        "evict_key",
    }
)
"""Faults after which a process may go on that was replaced; it may end the requests that it had begun."""
_SETS_PAUSES = frozenset({"store_clock_jump", "failover", "store_loss", "flush", "clock_jump", "evict_key"})
"""Faults after which how much of a sink's pause is over is told wrongly, or forgotten."""
_KNOWN_SOON = 1.0  # seconds until another process knows of a pause
_UNHEARD = 4.0  # seconds around a fault in which an answer may be lost; an attempt waits for three at most
_RECOVERY = 5.0  # seconds until a process asks a store again that was away


@dataclass(slots=True)
class Evidence:
    """What is known of a run.

    Attributes:
        plan: of the run.
        history: the lines of the source's log, for the plan's feeds.
        upto: the version up to which all must have been published.
        streams: of each resource, its entries.
        lines: what happened at each sink.
        begun_anew: the resources of which the store has lost all.
        emptied: the resources among these that the store has lost with its last writes: whether they had been
            remembered before, and so whether their baseline is sent, is chance.
        lossy: whether the store forgot what it had acknowledged.
        kills: when daemons were killed.
        resumed: when each subscription was resumed.
        on_record: what was settled for each subscription when a daemon was killed.
        replayed: subscriptions of which a part was delivered once more.
        removed: subscriptions that are no more; nothing is due to them.
        resources: the resource of each feed, also of those that are renamed.
        retired: feeds that are no more in the configuration: what is in their streams is due, and nothing else.
        resets: of feeds begun anew the last entry before that.
        restored: those of them that go on as before, for the store has lost their loss.
        torn: of feeds whose stream the store has lost all that was ever published.
        given_up: of each subscription and feed the entries that became dead letters.
        forgiven: of each subscription the events that the store has lost from what it keeps of deliveries.
        backfills: that were begun.
    """

    plan: Plan
    history: Sequence[Mapping[str, Any]]
    upto: int
    streams: Mapping[str, Sequence[Entry]]
    lines: Mapping[str, Sequence[Line]]
    begun_anew: set[str] = field(default_factory=set)
    emptied: set[str] = field(default_factory=set)
    lossy: bool = False
    kills: list[float] = field(default_factory=list)
    resumed: dict[str, list[float]] = field(default_factory=dict)
    on_record: dict[str, list[OnRecord]] = field(default_factory=dict)
    replayed: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    resources: Mapping[str, str] = field(default_factory=dict)
    retired: Collection[str] = ()
    resets: Mapping[str, str] = field(default_factory=dict)
    restored: Collection[str] = ()
    torn: Mapping[str, Sequence[Entry]] = field(default_factory=dict)
    given_up: Mapping[tuple[str, str], Collection[str]] = field(default_factory=dict)
    forgiven: Mapping[str, Collection[str]] = field(default_factory=dict)
    backfills: Sequence[BegunBackfill] = ()

    def streams_of(self, subscription: SubscriptionPlan) -> dict[str, Sequence[Entry]]:
        """The streams that a subscription gets."""
        return {
            feed: entries
            for feed, entries in self.streams.items()
            if not subscription.feeds or feed in subscription.feeds
        }

    def owed(self, subscription: SubscriptionPlan) -> set[str]:
        """The ids of all events that a sink must have taken in the end; of feeds begun anew no baseline is owed."""
        if subscription.id in self.removed:
            return set()
        events = ((feed, read(event)) for feed, found in self.streams_of(subscription).items() for _, event in found)
        due = {
            event["id"] for feed, event in events if feed not in self.begun_anew or event["data"]["cause"] != "baseline"
        }
        return due.difference(self.forgiven.get(subscription.id, ()))

    def published(self) -> dict[str, list[bytes]]:
        """What was published of each feed since it was begun, or begun anew."""
        found = {}
        for feed, entries in self.streams.items():
            reset = order(self.resets.get(feed, "0-0"))
            found[feed] = [event for entry, event in self.torn.get(feed, entries) if order(entry) > reset]
        return found

    def taken(self, sink: str) -> set[str]:
        """The ids of the events that a sink has answered with 2xx."""
        arrived: dict[int, Arrived] = {}
        taken: set[str] = set()
        for line in self.lines.get(sink, ()):
            if isinstance(line, Arrived):
                arrived[line.number] = line
            elif line.status is not None and 200 <= line.status < 300:
                taken.update(ids_of(arrived[line.number]))
        return taken


def unpublished(evidence: Evidence) -> list[str]:
    """What the streams do not show yet of what the source had."""
    return _streams(evidence).lost


def hidden(evidence: Evidence) -> int:
    """How many records of the source nothing leads to."""
    return len(_streams(evidence).hidden)


def undelivered(evidence: Evidence) -> dict[str, list[str]]:
    """For each subscription the ids of events that its sink has still to take."""
    left = {one.id: evidence.owed(one) - evidence.taken(one.id) for one in evidence.plan.subscriptions}
    return {name: sorted(ids) for name, ids in left.items() if ids}


def judged(evidence: Evidence) -> list[str]:
    """Everything that is wrong, one line each; empty: all held."""
    found = _streams(evidence)
    problems = [
        f"stream: {name}: {line}"
        for name in ("lost", "doubled", "misclassified", "gaps")
        for line in getattr(found, name)[:_SHOWN]
    ]
    for subscription in evidence.plan.subscriptions:
        problems += [f"sink {subscription.id}: {line}" for line in _sink(evidence, subscription)]
    return problems


def _streams(evidence: Evidence) -> Verdict:
    return _compared(evidence, evidence.published())


def _compared(evidence: Evidence, streams: Mapping[str, Sequence[bytes]]) -> Verdict:
    """Compare streams with the history: one of a renamed feed is a second one of its resource."""
    resources, retired = evidence.resources, evidence.retired
    apart = [feed for feed in streams if feed in retired or resources.get(feed, feed) != feed]
    besides = {resources[feed] for feed in apart}
    history = [line for line in evidence.history if line["resource"] not in besides]
    usual = {feed: events for feed, events in streams.items() if feed not in apart}
    found = judge(history, usual, upto=evidence.upto, begun_anew=evidence.begun_anew)
    for feed in apart:
        resource = resources[feed]
        history = [line for line in evidence.history if line["resource"] == resource]
        upto = 0 if feed in retired else evidence.upto
        anew = {resource} if feed in evidence.begun_anew else set()
        one = judge(history, {resource: streams[feed]}, upto=upto, begun_anew=anew)
        for name in ("hidden", "lost", "doubled", "misclassified", "gaps"):
            getattr(found, name).extend(getattr(one, name))
    return found


def _sink(evidence: Evidence, subscription: SubscriptionPlan) -> Iterator[str]:
    yield from _backfilled(evidence, subscription)
    found = _deliveries(evidence, subscription)
    allowed = dict.fromkeys(("late", "crowded", "needless"), IN_FLIGHT * _woken(evidence.plan))
    if any(fault.kind in _SETS_PAUSES for fault in evidence.plan.faults):
        allowed["early"] = len(found.early)
    if subscription.id in evidence.replayed:
        allowed |= {"late": len(found.late), "needless": len(found.needless)}
    if forgiven := evidence.forgiven.get(subscription.id):
        allowed |= {"lost": len(forgiven), "out_of_order": len(found.out_of_order), "late": len(found.late)}
    if subscription.id in evidence.removed:
        allowed["lost"] = len(found.lost)
    if _after_loss(evidence) and any(owner == subscription.id for owner, _ in evidence.given_up):
        # By revisions an event that was given up looks skipped, and by the stream late once it is redelivered.
        allowed |= {"out_of_order": len(found.out_of_order), "late": len(found.late)}
    # Where the store has forgotten the subscription, it begins anew; a replay asks for the baseline; and by a clock
    # that was set back, a feed was lost before the subscription was known.
    forgotten = subscription.added or bool(evidence.emptied)
    set_back = any(fault.kind == "store_clock_jump" and fault.strength < 0 for fault in evidence.plan.faults)
    if forgotten or (evidence.begun_anew and (set_back or subscription.id in evidence.replayed)):
        allowed["unwanted"] = len(found.unwanted)
    for name, faults in found.faults().items():
        if len(faults) > allowed.get(name, 0):
            yield from (f"{name}: {fault.text}" for fault in faults[:_SHOWN])
    if (
        not found.lost
        and not evidence.begun_anew
        and not evidence.torn  # what was taken does not stand in the stream any more, and some was never taken
        and not subscription.feeds
        and subscription.id not in evidence.removed
        and subscription.id not in evidence.forgiven
    ):
        taken = evidence.taken(subscription.id)
        told = {
            feed: [event for _, event in entries if read(event)["id"] in taken]
            for feed, entries in evidence.streams.items()
        }
        verdict = _compared(evidence, told)
        yield from (f"was not told all that the source did: {line}" for line in verdict.lost[:_SHOWN])


def _backfilled(evidence: Evidence, subscription: SubscriptionPlan) -> Iterator[str]:
    """What is wrong with the backfilled events of a sink, as far as the streams are what they were."""
    name = subscription.id
    if _after_loss(evidence) or evidence.torn or name in evidence.removed or name in evidence.forgiven:
        return
    lines = evidence.lines.get(name, ())
    # A feed that was renamed publishes its records again, from revision 1 on.
    is_renamed = any(feed != resource for feed, resource in evidence.resources.items())
    fallen = [] if is_renamed else fallen_revisions(lines, is_strict=name not in evidence.replayed)
    if len(fallen) > IN_FLIGHT * _woken(evidence.plan):
        yield from (f"fallen: {text}" for text in fallen[:_SHOWN])
    for begun in evidence.backfills:
        if begun.subscription == name and begun.feed not in evidence.retired and begun.feed in evidence.streams:
            missing = missing_records(lines, begun, evidence.streams[begun.feed])
            yield from (f"not backfilled: {record} of {begun.feed}" for record in missing[:_SHOWN])


def _after_loss(evidence: Evidence) -> bool:
    """Whether deliveries are compared by revisions, because the streams are not what they were."""
    return evidence.lossy or bool(evidence.begun_anew)


def _deliveries(evidence: Evidence, subscription: SubscriptionPlan) -> Deliveries:
    lines = [_as_heard(line, evidence.plan) for line in evidence.lines.get(subscription.id, ())]
    streams = evidence.streams_of(subscription)
    secret = SECRET if subscription.signed else None
    if _after_loss(evidence):
        anew = {*evidence.begun_anew, *evidence.torn}
        resources = {evidence.resources.get(feed, feed): feed for feed in anew}
        # A feed that was renamed and then begun anew: what its former name was sent before is no repetition.
        resets = {name: evidence.resets[feed] for name, feed in resources.items() if feed in evidence.resets}
        anew |= resources.keys()
        resets |= evidence.resets
        resets |= {feed: entries[-1][0] for feed, entries in streams.items() if feed in evidence.restored and entries}
        return judge_after_loss(lines, streams, evidence.history, secret, begun_anew=anew, resets=resets)
    known = heard(evidence.plan)
    asked = Asked(
        secret=secret,
        kills=evidence.kills,
        resumed=evidence.resumed.get(subscription.id, ()),
        on_record=evidence.on_record.get(subscription.id, ()),
        heard=known,
        grace=known,
        given_up={feed: entries for (owner, feed), entries in evidence.given_up.items() if owner == subscription.id},
    )
    return judge_deliveries(lines, streams, asked)


def _as_heard(line: Line, plan: Plan) -> Line:
    """What happened at a sink, but for its word that it is gone, where a process may not have heard or stored it."""
    if not isinstance(line, Ended) or str(line.status) not in GONE:
        return line
    lost = any(
        fault.kind in REPLACES
        and (fault.other in (SINKS, STORE) or fault.target == STORE or fault.kind == "freeze")
        and fault.at - _UNHEARD <= line.at <= fault.at + _lasts(fault) + _UNHEARD
        for fault in plan.faults
    )
    return msgspec.structs.replace(line, status=None) if lost else line


def heard(plan: Plan) -> float:
    """Seconds until all processes know of a pause: longer by what a fault holds up, for it may hold up the word."""
    held_up = [_lasts(fault) for fault in plan.faults if fault.kind in REPLACES]
    if not held_up:
        return _KNOWN_SOON
    return _KNOWN_SOON + 2 * plan.ttl + max(held_up)


def _lasts(fault: Deed) -> float:
    """Seconds until what a fault holds up has arrived."""
    return fault.seconds + (fault.strength if fault.kind == "slow" else 0.0)


def held_from_releasing(plan: Plan, daemon: str, since: float, until: float) -> bool:
    """Whether a fault may have kept a process that was told to stop in this span from releasing its leases."""
    return any(
        fault.kind in REPLACES
        and (fault.target == STORE or (fault.target == daemon and fault.other in ("", STORE)))
        and fault.at <= until
        and since <= fault.at + _lasts(fault) + _RECOVERY + 2 * plan.ttl
        for fault in plan.faults
    )


def _woken(plan: Plan) -> int:
    """How often a process may have gone on that had been replaced."""
    return sum(
        1 if fault.target.startswith("daemon") else len(plan.daemons) for fault in plan.faults if fault.kind in REPLACES
    )
