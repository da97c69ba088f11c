"""Plans of simulated runs, and how a plan that fails is made smaller."""

from __future__ import annotations

import msgspec

from tests.simulation.plan import Deed, Plan, calm, decode, drawn, encode, going_on, lasting, until_rest
from tests.simulation.shrink import shrunk

_SEEDS = range(200)


def test_same_seed_same_plan() -> None:
    """Law: a plan follows from its seed alone, and reads back from its JSON as it was written."""
    for seed in _SEEDS:
        plan = drawn(seed)
        assert plan == drawn(seed) == decode(encode(plan))


def test_world_that_goes_on() -> None:
    """Law: what happens when the world has gone on at rest is planned from then on; what was before stays as it was."""
    for seed in _SEEDS:
        plan = lasting(seed, 144.0)
        assert plan == lasting(seed, 144.0) == decode(encode(plan))
        first, then = until_rest(plan), going_on(plan, 100.0)
        assert all(one.at <= plan.seconds for one in (*first.faults, *first.actions))
        assert then.faults[: len(first.faults)] == first.faults
        later = (*then.faults[len(first.faults) :], *then.actions)
        assert len(later) == len(plan.faults) + len(plan.actions) - len(first.faults) - len(first.actions)
        assert all(100.0 < one.at <= then.seconds for one in later)
        assert then.seconds >= plan.lasts > 100.0
        assert max(feed.interval for feed in then.feeds) > max(feed.interval for feed in first.feeds)


def test_seeds_differ() -> None:
    """Law: each kind of fault and of action is in some plan, and none is in all of them."""
    plans = [drawn(seed) for seed in _SEEDS]
    kinds = {deed.kind for plan in plans for deed in (*plan.faults, *plan.actions)}
    assert {"kill", "freeze", "partition", "store_loss", "flush", "clock_jump", "pause_feed", "replay"} <= kinds
    assert {
        "evict_key",
        "rename_feed",
        "drop_feed",
        "reset_feed",
        "purge",
        "release",
        "redeliver",
        "forget_feed",
        "backfill",
    } <= kinds
    for kind in kinds:
        assert not all(kind in {deed.kind for deed in (*plan.faults, *plan.actions)} for plan in plans)


def _failing(*faults: str) -> Plan:
    deeds = tuple(Deed(float(number), name, "daemon-1") for number, name in enumerate(faults))
    return msgspec.structs.replace(calm(1, daemons=3, feeds=2, subscriptions=2), faults=deeds)


def test_shrunk_to_what_is_needed() -> None:
    """Law: what is left of a failing plan is what its failure needs, and the rest of the world is made small."""
    plan = _failing(*"abcdefghxijkly")

    def fails(one: Plan) -> bool:
        return {"x", "y"} <= {fault.kind for fault in one.faults} and len(one.daemons) > 1

    least = shrunk(plan, fails)
    assert [fault.kind for fault in least.faults] == ["x", "y"]
    assert len(least.daemons) == 2
    assert len(least.feeds) == len(least.subscriptions) == 1


def test_shrinking_ends() -> None:
    """Law: no more plans are played than allowed, and the plan returned is one that failed."""
    played: list[Plan] = []

    def fails(one: Plan) -> bool:
        played.append(one)
        return len(one.faults) > 1

    least = shrunk(_failing(*"abcdefghijklmnop"), fails, most=5)
    assert len(played) == 5
    assert len(least.faults) > 1
