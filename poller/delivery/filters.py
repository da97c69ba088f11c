"""Subscriptions as deliveries see them, and their filters.

**Invariants**

* An event is delivered if its type matches one of the types, if any are given, every filter holds, and ``when`` does.
* ``when.changed`` chooses among modified records alone: whether a record exists is no change of a field.
* Attributes are compared in their CloudEvents string form, case counts, and an attribute that an event does not have
  matches nothing: so ``not`` lets such an event through. Of ``exact``, ``prefix`` and ``suffix`` every entry must hold.
* A baseline lists existing records. A subscription that starts with new events does not get it, and one that existed
  before a reset of its feed does not get it again.
* Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import timedelta
from operator import attrgetter
from typing import Final

import msgspec

from poller.config.event_types import type_test
from poller.config.subscriptions import FilterSettings, WhenSettings
from poller.delivery.cloudevent import ATTRIBUTES, Envelope
from poller.delivery.projection import Projection, touches
from poller.delivery.retry import RetryPolicy
from poller.store.consumer_state import Entry, Start
from poller.store.stream import EntryId

Predicate = Callable[[Envelope], bool]
_Comparison = Callable[[str, str], bool]

_DIALECTS: Final[dict[str, _Comparison]] = {"exact": str.__eq__, "prefix": str.startswith, "suffix": str.endswith}


class Batching(msgspec.Struct, frozen=True):
    """The limits of a batch; the first limit reached sends it."""

    max_events: int = 1
    max_bytes: int | None = None
    linger: timedelta = timedelta(0)


class Subscription(msgspec.Struct, frozen=True):
    """The settings of a subscription, as deliveries use them.

    Attributes:
        id: of the subscription.
        wanted: whether an event is delivered.
        start: the start position; "now" gets no baselines.
        batching: the limits of a request.
        patience: the retry policy.
        disable_after: the time of failing after which it is paused.
        concurrency: the greatest number of requests in flight.
        rate: requests a second; None: no limit.
        sink: the sink's host, and its port if given; for the log.
        projection: gives the projection of a feed's events, ``SOURCE/NAME``; None: they are sent whole.
    """

    id: str
    wanted: Predicate
    patience: RetryPolicy
    disable_after: timedelta
    start: Start = "now"
    batching: Batching = Batching()
    concurrency: int = 8
    rate: float | None = None
    sink: str = ""
    projection: Callable[[str], Projection] | None = None


_BASELINE: Final = b',"cause":"baseline"}}'


def meets_baseline(subscription: Subscription, entries: Sequence[Entry]) -> bool:
    """Whether some of these may repeat earlier events after a reset of the feed."""
    return subscription.start != "now" and any(event and event.endswith(_BASELINE) for _, event in entries)


def wants(subscription: Subscription, envelope: Envelope, entry: str, event: bytes, *, reset_entry: str | None) -> bool:
    """Whether an event is delivered to a subscription.

    Args:
        subscription: with the filters.
        envelope: of the event.
        entry: its id in the stream.
        event: its bytes.
        reset_entry: the last entry before the reset of the feed; baselines after it repeat earlier events. None: none.
    """
    if event.endswith(_BASELINE):
        repeats = reset_entry is not None and EntryId.parse(entry) > EntryId.parse(reset_entry)
        return subscription.start != "now" and not repeats and subscription.wanted(envelope)
    return subscription.wanted(envelope)


def compile_filters(
    types: Collection[str] | None, filters: Sequence[FilterSettings], when: WhenSettings | None = None
) -> Predicate:
    """A predicate for types, filters and ``when``.

    Args:
        types: event types and patterns, see :mod:`poller.config.event_types`; None: all.
        filters: must all hold.
        when: must hold; None: always does.
    """
    parts = [_compiled(single) for single in filters]
    parts += _parts_of(when) if when is not None else []
    if types is not None:
        matched = type_test(types)
        parts.insert(0, lambda envelope: matched(envelope.type))  # the cheapest test comes first
    return _all_of(parts)


def _parts_of(when: WhenSettings) -> list[Predicate]:
    parts: list[Predicate] = []
    if causes := frozenset(when.cause):
        parts.append(lambda envelope: envelope.cause in causes)
    if excluded := frozenset(when.not_cause):
        parts.append(lambda envelope: envelope.cause not in excluded)
    if when.changed:
        parts.append(_changes_one_of(when.changed))
    return parts


class _ChangedPart(msgspec.Struct, frozen=True):
    changed: tuple[str, ...] | None = None


_changed_part: Final = msgspec.json.Decoder(_ChangedPart).decode


def _changes_one_of(wanted: Sequence[str]) -> Predicate:
    def holds(envelope: Envelope) -> bool:
        try:
            changed = _changed_part(envelope.data).changed
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return True  # another program's event, which says nothing about fields
        return changed is None or any(touches(pointer, wanted) for pointer in changed)

    return holds


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
    if not parts:
        return _any_event
    return parts[0] if len(parts) == 1 else lambda envelope: _each(parts, envelope)


def _any_event(_: Envelope) -> bool:
    return True


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
