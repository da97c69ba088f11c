"""The smallest plan that still fails: delta debugging over faults and actions, then over sizes.

**Invariants**

- Only plans that were played and failed are kept, so what is returned fails.
- The number of plays is bounded.

Pure but for the plays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from tests.simulation.plan import Plan, until_rest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

T = TypeVar("T")


def shrunk(plan: Plan, fails: Callable[[Plan], bool], *, most: int = 120) -> Plan:
    """The smallest plan found that fails.

    Args:
        plan: one that fails.
        fails: plays a plan; whether it fails.
        most: how many plans are played at most.
    """
    search = _Search(fails, most)
    if plan.lasts and search.tried(brief := until_rest(plan)):
        plan = brief
    plan = search.least(plan, "faults")
    plan = search.least(plan, "actions")
    for simpler in _simpler(plan):
        candidate = simpler(plan)
        if candidate != plan and search.tried(candidate):
            plan = candidate
    return plan


class _Search:
    def __init__(self, fails: Callable[[Plan], bool], most: int) -> None:
        self._fails = fails
        self._left = most

    def tried(self, plan: Plan) -> bool:
        """Whether this plan fails; a plan that may not be played any more does not."""
        self._left -= 1
        return self._left >= 0 and self._fails(plan)

    def least(self, plan: Plan, what: str) -> Plan:
        """The plan with as few elements of this kind as possible (ddmin)."""
        kept = list(getattr(plan, what))
        parts = 1  # at first all of them together
        while kept and self._left > 0:
            for without in _without(kept, parts):
                candidate = msgspec.structs.replace(plan, **{what: tuple(without)})
                if self.tried(candidate):
                    kept, plan, parts = without, candidate, max(parts - 1, 1)
                    break
            else:
                if parts >= len(kept):
                    break
                parts = min(2 * parts, len(kept))
        return plan


def _without(elements: Sequence[T], parts: int) -> Iterator[list[T]]:
    """The elements without each of so many parts."""
    size = -(-len(elements) // parts)
    for begin in range(0, len(elements), size):
        yield [*elements[:begin], *elements[begin + size :]]


def _simpler(plan: Plan) -> Iterator[Callable[[Plan], Plan]]:
    replace = msgspec.structs.replace
    for subscription in plan.subscriptions[1:]:
        yield lambda one, gone=subscription: (  # type: ignore[misc] # mypy cannot infer a lambda's default
            one
            if any(deed.target == gone.id for deed in (*one.faults, *one.actions))
            else replace(one, subscriptions=tuple(kept for kept in one.subscriptions if kept != gone))
        )
    for feed in plan.feeds[1:]:
        yield lambda one, gone=feed: (  # type: ignore[misc] # likewise
            one
            if any(gone.resource in (deed.target, deed.other) for deed in (*one.faults, *one.actions))
            or any(subscription.feeds == (gone.resource,) for subscription in one.subscriptions)
            else replace(one, feeds=tuple(kept for kept in one.feeds if kept != gone))
        )
    for daemon in plan.daemons[1:]:
        yield lambda one, gone=daemon: (  # type: ignore[misc] # likewise
            one
            if any(gone.host == deed.target for deed in one.faults)
            else replace(one, daemons=tuple(kept for kept in one.daemons if kept != gone))
        )
    yield lambda one: replace(
        one, daemons=tuple(replace(daemon, skew=0.0, drift=0.0, starts=0.0) for daemon in one.daemons)
    )
    yield (
        lambda one: (
            one
            if one.lasts
            else replace(one, seconds=max([deed.at for deed in (*one.faults, *one.actions)], default=0.0) + 1)
        )
    )
    yield lambda one: replace(one, feeds=tuple(replace(feed, cron=None) for feed in one.feeds))
    yield lambda one: replace(one, records=5)
    yield lambda one: replace(one, removals=0.0)
    yield lambda one: replace(
        one, subscriptions=tuple(replace(each, moods="ok", rate=None) for each in one.subscriptions)
    )
