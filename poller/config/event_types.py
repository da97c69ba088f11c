"""Event types: which of them the feeds of a configuration publish, and what an entry of ``types`` matches.

**Invariants**

- ``subscriptions[].types``, ``poller tail --type`` and ``GET /events?type=`` mean the same by the same text: a type, a
  pattern with ``*`` and ``?``, or ``created``, ``modified`` or ``removed`` alone.
- A type is made of the source's ``type_prefix``, the name of the kind of record, and the kind of change.
- Case counts.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from difflib import get_close_matches
from fnmatch import translate
from functools import lru_cache
from typing import Final

KINDS: Final = ("created", "modified", "removed")
"""Of changes; each alone stands for all types of that kind."""

TYPE_NAMES: Final = {
    "evidenceVariants": "evidenceVariant",
    "employmentUnavailabilities": "employmentUnavailability",
    "contractTypes": "contractType",
    "achievements": "achievement",
}
"""What a record of a known resource is called in event types."""

_WILD: Final = re.compile(r"[*?\[]")
_COMPARED: Final = 500  # types that a wrong one is compared with


def published(prefix: str, resource: str, type_name: str | None) -> tuple[str, ...]:
    """The types of the events of a feed.

    Args:
        prefix: ``type_prefix`` of its source.
        resource: of the feed.
        type_name: as configured; None for the default.
    """
    name = type_name or TYPE_NAMES.get(resource) or resource.removesuffix("s")
    return tuple(f"{prefix}.{name}.{kind}.v1" for kind in KINDS)


def type_test(wanted: Iterable[str]) -> Callable[[str], bool]:
    """Whether a type is matched by one of these entries. Made once, to be asked for each event."""
    entries = tuple(wanted)
    exact = frozenset(entry for entry in entries if entry not in KINDS and not _WILD.search(entry))
    patterns = [_pattern(entry) for entry in entries if entry not in exact]
    if not patterns:
        return exact.__contains__

    @lru_cache(maxsize=256)  # there are few types, and many events
    def matched(found: str) -> bool:
        return found in exact or any(pattern.fullmatch(found) for pattern in patterns)

    return matched


def unmatched(wanted: Sequence[str], types: Collection[str]) -> list[tuple[int, str, str]]:
    """The entries that match none of these types: place, entry, and what is expected there."""
    return [
        (place, entry, _expected(entry, types))
        for place, entry in enumerate(wanted)
        if not any(map(type_test([entry]), types))
    ]


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
