"""Event types and event sources that the feeds of a configuration publish.

**Invariants**

- ``subscriptions[].types``, ``poller tail --type`` and ``GET /events?type=`` mean the same by the same text: a type, a
  pattern with ``*`` and ``?``, or ``created``, ``modified`` or ``removed`` alone.
- A type is made of the source's ``type_prefix``, the name of the kind of record, and the kind of change.
- Case counts.
- The source of a feed's events is ``event_source`` of its source and the path of its list; ``{id}`` in it stands for
  any qualification. Of filters only ``exact`` sources and types that must hold are checked: in ``filters``, or in an
  ``all`` there.
- An entry from outside is checked (:func:`unmatched_types`) before a pattern is made of it: a pattern has at most
  :data:`LONGEST_PATTERN` characters, and one list at most :data:`MOST_PATTERNS` of them.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import translate
from functools import lru_cache
from typing import Any, Final

from poller.config.errors import Key
from poller.resources import RESOURCES, type_name_of

KINDS: Final = ("created", "modified", "removed")
"""Of changes; each alone stands for all types of that kind."""

LONGEST_PATTERN: Final = 256
"""Characters. Making a pattern of a text takes time by the square of its length."""

MOST_PATTERNS: Final = 64
"""Each is made, and then compared with every type that is new."""

MOST_REPORTED: Final = 20
"""Entries of one list that are wrong."""

_WILD: Final = re.compile(r"[*?\[]")
_COMPARED: Final = 500  # types that a wrong one is compared with


def published_types(prefix: str, resource: str, type_name: str | None) -> tuple[str, ...]:
    """The types of a feed's events.

    Args:
        prefix: ``type_prefix`` of its source.
        resource: of the feed.
        type_name: as configured; None: the default.
    """
    name = type_name or type_name_of(resource)
    return tuple(f"{prefix}.{name}.{kind}.v1" for kind in KINDS)


def type_test(wanted: Iterable[str]) -> Callable[[str], bool]:
    """A test whether a type matches one of these entries. Made once, used for each event."""
    entries = tuple(wanted)
    exact = frozenset(entry for entry in entries if not _is_pattern(entry))
    patterns = [_pattern(entry) for entry in entries if entry not in exact]
    if not patterns:
        return exact.__contains__

    @lru_cache(maxsize=256)  # there are few types, and many events
    def matched(found: str) -> bool:
        return found in exact or any(pattern.fullmatch(found) for pattern in patterns)

    return matched


def unmatched_types(wanted: Sequence[str], types: Collection[str]) -> list[tuple[int, str, str]]:
    """Entries that are unusable or match no type: place, entry, expectation.

    The first :data:`MOST_REPORTED` of them: each is compared with the types, to find the one that was meant.
    """
    there, patterns = frozenset(types), 0
    found: list[tuple[int, str, str]] = []
    for place, entry in enumerate(wanted):
        if _is_pattern(entry):
            patterns += 1
            if len(entry) > LONGEST_PATTERN:
                found.append((place, entry, f"expected a pattern of at most {LONGEST_PATTERN} characters"))
            elif patterns > MOST_PATTERNS:
                return [*found, (place, entry, f"expected at most {MOST_PATTERNS} patterns; name the types instead")]
            elif not any(map(type_test([entry]), there)):
                found.append((place, entry, _expected(entry, there)))
        elif entry not in there:
            found.append((place, entry, _expected(entry, there)))
        if len(found) == MOST_REPORTED:
            break
    return found


def _is_pattern(entry: str) -> bool:
    return entry in KINDS or _WILD.search(entry) is not None


def _pattern(entry: str) -> re.Pattern[str]:
    return re.compile(rf".+\.{entry}\.v[0-9]+" if entry in KINDS else translate(entry))


def _expected(entry: str, types: Collection[str]) -> str:
    known = sorted(types)
    close = get_close_matches(entry, [*KINDS, *known[:_COMPARED]], n=1, cutoff=0.6)
    hint = (
        f'did you mean "{close[0]}"?'
        if close
        else f'that is created, modified, removed, a pattern such as "*.removed.v1", or one such as "{known[0]}"'
        if known
        else "there is no feed"
    )
    return f"expected a type that a feed publishes; {hint}"


_NAMED: Final = 4
_ID: Final = re.escape("{id}")


def event_source(prefix: str, resource: str, path: str | None) -> str:
    """The source of a feed's events; ``{id}`` in it stands for any qualification.

    Args:
        prefix: ``event_source`` of its source.
        resource: of the feed.
        path: as configured; None: the default.
    """
    known = RESOURCES.get(resource)
    return prefix + (path or (known.path if known else ""))


def required_values(filters: Any, attribute: str) -> Iterator[tuple[Key, str]]:
    """The values of an attribute that events must have to pass these filters, with their places.

    The filters may have the wrong shape.
    """
    tables: list[tuple[Key, Any]] = [((), filters)]
    while tables:
        key, several = tables.pop()
        for place, one in enumerate(several if isinstance(several, list | tuple) else ()):
            if not isinstance(one, Mapping):
                continue
            compared = one.get("exact")
            value = compared.get(attribute) if isinstance(compared, Mapping) else None
            if isinstance(value, str) and value:
                yield (*key, place, "exact", attribute), value
            tables.append(((*key, place, "all"), one.get("all")))


def unknown_type(wanted: str, types: Collection[str]) -> str | None:
    """What is expected in place of an unknown type, which no pattern is; None: it is known."""
    if wanted in types:
        return None
    known = sorted(types)
    close = get_close_matches(wanted, known[:_COMPARED], n=1, cutoff=0.6)
    hint = f'did you mean "{close[0]}"?' if close else f'such as "{known[0]}"' if known else "there is no feed"
    return f"expected a type that a feed publishes; {hint}"


def unknown_source(wanted: str, sources: Collection[str]) -> str | None:
    """What is expected in place of an unknown source; None: it is known."""
    if wanted in sources or any(_form(one).fullmatch(wanted) for one in sources if "{id}" in one):
        return None
    known = sorted(sources)
    close = get_close_matches(wanted, known[:_COMPARED], n=1, cutoff=0.6)
    more = ", …" if len(known) > _NAMED else ""
    hint = f'did you mean "{close[0]}"?' if close else f"there are {', '.join(known[:_NAMED])}{more}"
    return f"expected the source of a feed's events; {hint}"


def _form(source: str) -> re.Pattern[str]:
    return re.compile(re.escape(source).replace(_ID, "[^/]+"))
