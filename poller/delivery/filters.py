"""A subscription as deliveries see it, and which events it wants.

**Invariants**

* An event is wanted when its type matches one of the types, where there are any, and every filter holds.
* Attributes are compared in their CloudEvents string form, case counts, and an attribute that an event does not have
  matches nothing: so ``not`` lets such an event through. Of ``exact``, ``prefix`` and ``suffix`` every entry must hold.
* A baseline lists what exists. A subscription that starts with what is new does not get it, and one that existed before
  its feed was reset does not get it again.
* Pure. Which feeds are read is decided before there is an event.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import timedelta
from operator import attrgetter
from typing import Final, Literal

import msgspec

from poller.config.event_types import type_test
from poller.config.subscriptions import FilterSettings
from poller.delivery.cloudevent import ATTRIBUTES, Envelope
from poller.delivery.retry import RetryPolicy
from poller.store.consumer_state import Entry
from poller.store.stream import EntryId

Predicate = Callable[[Envelope], bool]
_Comparison = Callable[[str, str], bool]

_DIALECTS: Final[dict[str, _Comparison]] = {"exact": str.__eq__, "prefix": str.startswith, "suffix": str.endswith}


class Batching(msgspec.Struct, frozen=True):
    """How events are gathered; what is reached first sends them."""

    max_events: int = 1
    max_bytes: int | None = None
    linger: timedelta = timedelta(0)


class Subscription(msgspec.Struct, frozen=True):
    """What is wanted, and how.

    Attributes:
        id: its name.
        wanted: whether an event is delivered.
        start: where a new one begins; "now" gets no baselines.
        batching: how many events a request carries.
        patience: how often an event is tried.
        disable_after: of nothing but failures it is given up.
        concurrency: requests in flight.
        rate: requests a second; None for no limit.
        sink: the host that it goes to, and its port where that is named; for the log.
    """

    id: str
    wanted: Predicate
    patience: RetryPolicy
    disable_after: timedelta
    start: Literal["now", "earliest"] = "now"
    batching: Batching = Batching()
    concurrency: int = 8
    rate: float | None = None
    sink: str = ""


_BASELINE: Final = b',"cause":"baseline"}}'


def meets_baseline(subscription: Subscription, entries: Sequence[Entry]) -> bool:
    """Whether some of these may be repeats if the feed was reset."""
    return subscription.start != "now" and any(event and event.endswith(_BASELINE) for _, event in entries)


def wants(subscription: Subscription, envelope: Envelope, entry: str, event: bytes, *, reset_entry: str | None) -> bool:
    """Whether the subscription is to get an event.

    Args:
        subscription: whose.
        envelope: the event's.
        entry: its id in the stream.
        event: all of it.
        reset_entry: the last entry before the reset of the feed; baselines after it repeat earlier events. None: none.
    """
    if event.endswith(_BASELINE):
        repeats = reset_entry is not None and EntryId.parse(entry) > EntryId.parse(reset_entry)
        return subscription.start != "now" and not repeats and subscription.wanted(envelope)
    return subscription.wanted(envelope)


def compile_filters(types: Collection[str] | None, filters: Sequence[FilterSettings]) -> Predicate:
    """One predicate for all that a subscription says about events.

    Args:
        types: the event types it wants, as :mod:`poller.config.event_types` reads them; None for all.
        filters: all of them must hold; none holds always.
    """
    parts = [_compiled(single) for single in filters]
    if types is not None:
        matched = type_test(types)
        parts.insert(0, lambda envelope: matched(envelope.type))  # the cheapest question comes first
    return _all_of(parts)


def _compiled(single: FilterSettings) -> Predicate:
    if single.all is not None:
        return _all_of([_compiled(inner) for inner in single.all])
    if single.any is not None:
        return _any_of([_compiled(inner) for inner in single.any])
    if single.not_ is not None:
        return _opposite(_compiled(single.not_))
    return _all_of(
        [
            _compared(name, expected, compare)
            for dialect, compare in _DIALECTS.items()
            for name, expected in (getattr(single, dialect) or {}).items()
        ]
    )


def _compared(name: str, expected: str, compare: _Comparison) -> Predicate:
    read: Callable[[Envelope], str | None] = attrgetter(name) if name in ATTRIBUTES else _extension(name)

    def holds(envelope: Envelope) -> bool:
        value = read(envelope)
        return value is not None and compare(value, expected)

    return holds


def _extension(name: str) -> Callable[[Envelope], str | None]:
    return lambda envelope: envelope.extensions.get(name)


def _all_of(parts: Sequence[Predicate]) -> Predicate:
    if len(parts) == 1:
        return parts[0]
    return lambda envelope: _each(parts, envelope)


def _each(parts: Iterable[Predicate], envelope: Envelope) -> bool:
    # A loop and not all(): this runs for each event and each subscription, and a generator costs more than it does.
    for holds in parts:  # noqa: SIM110 -- see above
        if not holds(envelope):
            return False
    return True


def _any_of(parts: Sequence[Predicate]) -> Predicate:
    return lambda envelope: any(holds(envelope) for holds in parts)


def _opposite(holds: Predicate) -> Predicate:
    return lambda envelope: not holds(envelope)
