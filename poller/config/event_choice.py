"""What the choices of a subscription (``types``, ``filters``, ``when``, ``fields``) can meet.

**Invariants**

- A filter for an attribute that no event has is refused, wherever it stands. The attributes are those of
  :mod:`poller.changes.events`, and the causes, too; tests compare them.
- A choice is called impossible only if no event of the subscription's feeds can meet it. Each type is tried with each
  cause and the source of its feed; what else an event has may be anything, so a filter for it may hold or not.
- The values that are looked at may have the wrong shape: they are compared with what is known before they are
  validated, so that all problems are reported together.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final, Literal, get_args

from poller.config.errors import Key
from poller.config.event_types import required_values, type_test

CauseName = Literal["baseline", "delta", "full", "reconcile", "resync", "backfill"]
CAUSES: Final[tuple[CauseName, ...]] = get_args(CauseName)
"""Of events."""

EVENT_ATTRIBUTES: Final = (
    "specversion",
    "id",
    "source",
    "type",
    "subject",
    "time",
    "recordedtime",
    "sequence",
    "partitionkey",
    "cause",
    "datacontenttype",
    "traceparent",
    "tracestate",
)
"""All attributes that an event of a feed may have."""

_NAME: Final = re.compile("[a-z0-9]+")
_CONSTANT: Final = {"specversion": "1.0", "datacontenttype": "application/json"}
NOT_BASELINE: Final = tuple(cause for cause in CAUSES if cause != "baseline")
"""Of the events that a subscription with the start "now" gets."""

_OF_CREATED: Final = "backfill"
"""The cause of created events alone."""

IMPOSSIBLE: Final = (
    "expected choices that one event can meet: no event of its feeds meets types, filters and when together"
)

NOTHING_BACKFILLED: Final = (
    "expected choices that let created events with the cause backfill through, or another start: with start = "
    '"snapshot" the subscription begins with such events'
)

NOTHING_BUT_BASELINES: Final = (
    "expected choices that let another cause than baseline through, or another start: with start = "
    '"now" the subscription does not get the events of first readings'
)

_AROUND_RECORDS: Final = re.compile(r"(?:/data)?/(?:record|previous)(?=/|$)|/data(?=/|$)")
_OF_DATA: Final = frozenset({"changed", "revision", "cause", "omitted"})
"""The members of ``data`` beside ``record`` and ``previous``."""

_COMPARISONS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "exact": str.__eq__,
    "prefix": str.startswith,
    "suffix": str.endswith,
}


def unknown_attributes(filters: Any) -> Iterator[tuple[Key, str]]:
    """The attributes in these filters that no event has, with their places."""
    tables: list[tuple[Key, Any]] = [((), filters)]
    while tables:
        key, several = tables.pop()
        single = not isinstance(several, list | tuple)
        for place, one in enumerate([several] if single else several):
            at = key if single else (*key, place)
            if not isinstance(one, Mapping):
                continue
            for dialect in _COMPARISONS:
                compared = one.get(dialect)
                for name in compared if isinstance(compared, Mapping) else ():
                    if isinstance(name, str) and _NAME.fullmatch(name) and name not in EVENT_ATTRIBUTES:
                        yield (*at, dialect, name), name
            tables += [((*at, inner), one[inner]) for inner in ("all", "any", "not") if inner in one]


def unknown_attribute(_: str) -> str:
    """What is expected in place of an attribute that no event has."""
    return f"expected an attribute that events have: {', '.join(EVENT_ATTRIBUTES)}"


def unknown_cause(wanted: str, _: object = None) -> str | None:
    """What is expected in place of an unknown cause; None: it is known."""
    return None if wanted in CAUSES else f"expected a cause of events: {', '.join(CAUSES)}"


def dropped_ids(fields: Any, id_fields: Iterable[str]) -> Iterator[tuple[Key, str]]:
    """The pointers in ``fields.drop`` that name an id field, with their places."""
    drop = fields.get("drop") if isinstance(fields, Mapping) else None
    ids = {"/" + name.replace("~", "~0").replace("/", "~1") for name in id_fields}
    for place, pointer in enumerate(drop if isinstance(drop, list | tuple) else ()):
        if isinstance(pointer, str) and pointer in ids:
            yield ("drop", place), pointer


DROPPED_ID: Final = (
    "expected another field than the id: an event names its record by it (subject), so it is always sent"
)


def outer_pointers(subscription: Mapping[str, Any], own: Collection[str] = ()) -> Iterator[tuple[Key, str]]:
    """The pointers of ``fields`` and ``when`` that begin at the event and not at the record, with their places.

    Args:
        subscription: its settings.
        own: names that records of its feeds are known to have: a pointer that begins with one begins at the record.
    """
    for table, names in (("fields", ("pick", "drop")), ("when", ("changed",))):
        chosen = subscription.get(table)
        if not isinstance(chosen, Mapping):
            continue
        for name in names:
            pointers = chosen.get(name)
            for place, pointer in enumerate(pointers if isinstance(pointers, list | tuple) else ()):
                if isinstance(pointer, str) and _AROUND_RECORDS.match(pointer) and pointer.split("/")[1] not in own:
                    yield (table, name, place), pointer


def within_record(pointer: str) -> str:
    """What is expected in place of a pointer that begins at the event."""
    within = _AROUND_RECORDS.sub("", pointer, count=1)
    if not within or within[1:] in _OF_DATA:
        return (
            'expected a pointer that begins at the record, such as "/reason": it holds for record, previous and '
            "changed; thin = true sends no values at all"
        )
    return f'expected a pointer that begins at the record, such as "{within}": it holds for record and previous'


def is_possible(
    choice: Mapping[str, Any], published: Iterable[tuple[str, str]], *, among: Collection[str] = CAUSES
) -> bool:
    """Whether some event can meet ``types``, ``filters`` and ``when``; also where their shape is wrong.

    Args:
        choice: of the subscription; its types are usable.
        published: type and source of the events of its feeds; the source may hold ``{id}``.
        among: the causes that the event may have.
    """
    filters = choice.get("filters")
    if any(len({value for _, value in required_values(filters, name)}) > 1 for name in EVENT_ATTRIBUTES):
        return False
    types, causes = _tables(choice.get("types")), [one for one in _causes(choice.get("when")) if one in among]
    chosen = type_test(types) if types and all(isinstance(one, str) for one in types) else None
    tables = _tables(filters)

    @cache  # a source has several types
    def may_be_of(source: str) -> bool:
        return _all(_verdict(one, _known(source)) for one in tables) is not False

    return any(
        _all(_verdict(one, _known(source, type=type_, cause=cause)) for one in tables) is not False
        for type_, source in published
        if (chosen is None or chosen(type_)) and may_be_of(source)
        for cause in causes
        if cause != _OF_CREATED or ".created." in type_
    )


def _causes(when: Any) -> list[str]:
    """The causes that ``when`` lets through."""
    if not isinstance(when, Mapping):
        return list(CAUSES)
    wanted, excluded = _tables(when.get("cause")), _tables(when.get("not_cause"))
    if any(one not in CAUSES for one in wanted):
        return list(CAUSES)  # which one was meant is not known
    return [cause for cause in CAUSES if (not wanted or cause in wanted) and cause not in excluded]


def _known(source: str, **more: str) -> Mapping[str, str]:
    """The attributes whose values are known."""
    return {**_CONSTANT, **more} if "{id}" in source else {**_CONSTANT, **more, "source": source}


def _verdict(one: Any, known: Mapping[str, str]) -> bool | None:
    """Whether a filter holds for an event with these attributes; None: it may."""
    if not isinstance(one, Mapping) or len(one) != 1:
        return None
    verdicts: list[bool | None] = []
    for dialect, content in one.items():
        if dialect == "not":
            inner = _verdict(content, known)
            verdicts.append(None if inner is None else not inner)
        elif dialect == "any":
            verdicts.append(_any([_verdict(part, known) for part in _tables(content)]))
        elif dialect == "all":
            verdicts.append(_all(_verdict(part, known) for part in _tables(content)))
        elif dialect in _COMPARISONS and isinstance(content, Mapping):
            compare = _COMPARISONS[dialect]
            verdicts.append(_all(_compared(known.get(name), text, compare) for name, text in content.items()))
        else:
            verdicts.append(None)
    return _all(verdicts)


def _compared(value: str | None, text: Any, compare: Callable[[str, str], bool]) -> bool | None:
    return None if value is None or not isinstance(text, str) else compare(value, text)


def _all(verdicts: Iterable[bool | None]) -> bool | None:
    found = set(verdicts)
    return False if False in found else None if None in found else True


def _any(verdicts: list[bool | None]) -> bool | None:
    found = set(verdicts)
    return True if True in found or not found else None if None in found else False


def _tables(several: Any) -> list[Any]:
    return list(several) if isinstance(several, list | tuple) else []
