"""Which events a subscription wants: its types and its filters, compiled once into one question.

The law: an event is wanted when its type matches one of the types, where there are any, and every filter holds.
Attributes are compared in their CloudEvents string form, case counts, and an attribute that an event does not have
matches nothing: so ``not`` lets such an event through. Of the dialects ``exact``, ``prefix`` and ``suffix`` every entry
must hold.

Which feeds are read is decided elsewhere, before there is an event to ask about.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from operator import attrgetter
from typing import Final

from poller.config.event_types import type_test
from poller.config.subscriptions import FilterSettings
from poller.delivery.cloudevent import ATTRIBUTES, Envelope

Predicate = Callable[[Envelope], bool]
_Comparison = Callable[[str, str], bool]

_DIALECTS: Final[dict[str, _Comparison]] = {"exact": str.__eq__, "prefix": str.startswith, "suffix": str.endswith}


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
